"""How jobs, durations and errors read. Pure; nothing here raises."""

from __future__ import annotations

import html
import re
import shlex
import traceback
from collections.abc import Callable, Mapping
from pathlib import PureWindowsPath

from kit.errors import Cancelled, JobFailed, KitError

ENDED = ("done", "failed", "cancelled")


class Account:
    """What a job says of itself in words; the job has the facts (see `kit.job.Job`)."""

    @property
    def fraction(self) -> float | None:
        """0…1, or None while unknown."""
        if self.state == "done":
            return 1.0
        return min(1.0, max(0.0, self.done / self.total)) if self.total > 0 else None

    @property
    def words(self) -> str:
        """State, phase, progress and elapsed time in one line."""
        parts = [self.state]
        if self.phases and self.state not in ENDED:
            parts.append(self.phases[-1][0])
        if self.total > 0:
            percent = "" if self.state in ENDED else f"{100 * (self.fraction or 0):.0f} %: "
            parts.append(f"{percent}{self.done:,} of {self.total:,}")
        elif self.done:
            parts.append(f"{self.done:,}")
        return " · ".join([*parts, *([self.note] if self.note else []), seconds(self.elapsed_s)])

    def __repr__(self) -> str:
        lines = [f"{self.name}: {self.words}", *(f"  | {line}" for line in self.lines(5))]
        if self.error is not None:
            lines.append(three_lines(self.error))
        return without_addresses("\n".join(lines))

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(repr(self))}</pre>"


class Text(str):
    """A text that a notebook shows as it is: its lines, not one quoted string."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self)}</pre>"


def seconds(s: float) -> str:
    """A duration for the eye: `4.2 s`, `3 min 05 s`, `2 h 10 min`."""
    if s < 60:
        return f"{s:.1f} s"
    minutes = int(s) // 60
    return f"{minutes} min {int(s) % 60:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def complaint(error: BaseException) -> str:
    """Type and message of any exception; never raises."""
    try:
        text = str(error)
    except Exception as e:   # an exception that cannot speak; its type still can
        text = f"(its message raised {type(e).__name__})"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def named(job: str, error: BaseException) -> KitError:
    """The error itself where it is the kit's, else a `JobFailed` that says where it broke and keeps it as cause."""
    if isinstance(error, KitError):
        return error
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{PureWindowsPath(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""   # either slash
    failed = JobFailed(f"{job}: {without_addresses(complaint(error))}", where=place,
                       next="job.error.__cause__ has the whole story; start it again once that is mended")
    failed.__cause__ = error
    return failed


def cancelled(job: Account) -> Cancelled:
    """The error of a job that was asked to stop: where it was, and how to start anew."""
    return Cancelled(f"{job.name}: cancelled", where=job.note or (job.phases[-1][0] if job.phases else ""),
                     next="run the cell again to start it anew")


def grouped(words: tuple[str, ...], quote: Callable[[str], str]) -> list[str]:
    """A command line for reading: every flag on a line of its own, with its values.

    >>> grouped(("--tp", "8", "--trust"), str)
    ['--tp 8', '--trust']
    """
    lines: list[list[str]] = []
    for word in words:
        if lines and not word.startswith("-") and lines[-1][0].startswith("-"):
            lines[-1].append(word)
        else:
            lines.append([word])
    return [" ".join(map(quote, line)) for line in lines]


def command_text(argv: tuple[str, ...], env: Mapping[str, str]) -> str:
    """A command as one would type it: its environment first, then a line for each flag.

    >>> print(command_text(("serve", "--port", "80"), {"A": "b c"}))
    A='b c' \\
    serve \\
      --port 80
    """
    program, *flags = grouped(argv, shlex.quote)
    return " \\\n".join([*(f"{k}={shlex.quote(v)}" for k, v in env.items()), program, *(f"  {f}" for f in flags)])


def outcome(job: str, error: BaseException | None, asked: Cancelled | None,
            cleanup: BaseException | None) -> KitError | None:
    """The error a job ends with: `asked` is set when it was asked to stop, `cleanup` when stopping went wrong.

    A failed clean-up outweighs the wish to stop: something may still be there. Work that was cut off may
    return early, or fail on what was closed under it; neither is an outcome, so it counts as cancelled.
    """
    if cleanup is not None:
        return named(job, cleanup)
    if asked is not None and (error is None or isinstance(error, Exception)) and not isinstance(error, Cancelled):
        asked.__cause__ = error
        return asked
    return None if error is None else named(job, error)


def three_lines(error: BaseException) -> str:
    """What, where and next, one line each; a long *what* loses its middle."""
    if not isinstance(error, KitError):
        return " / ".join(complaint(error).split("\n"))
    what = " / ".join(part.strip() for part in str(error.what).splitlines() if part.strip())
    if len(what) > 400:
        what = f"{what[:200]} … {what[-200:]}"
    rows = [f"{type(error).__name__}: {what}"]
    for label, text in (("where:", error.where), ("next: ", error.next)):
        if text:
            rows.append(f"  {label} {' / '.join(str(text).splitlines())}")
    return "\n".join(rows)


def without_addresses(text: str) -> str:
    """Memory addresses differ from run to run, and saved notebooks should not."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)
