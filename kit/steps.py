"""The steps a plan is made of, and the plan. Values only: `kit.applying` carries them out."""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import dataclass, field
from difflib import unified_diff

from kit.seams import Unit
from kit.spec import Checkpoint, Experiment
from kit.words import Text


@dataclass(frozen=True)
class Write:
    """Put a small file on the host, atomically."""
    path: str
    content: bytes = field(repr=False)
    why: str
    mode: int = 0o644

    @property
    def subject(self) -> str:
        return self.path


@dataclass(frozen=True)
class Run:
    """Run one command on the host as a supervised job, and wait for its end."""
    unit: Unit
    why: str

    @property
    def subject(self) -> str:
        return self.unit.name


@dataclass(frozen=True)
class Fetch:
    """Bring a checkpoint to the host."""
    checkpoint: Checkpoint
    dest: str
    why: str

    @property
    def subject(self) -> str:
        return self.checkpoint.source


@dataclass(frozen=True)
class Check:
    """Hold the drafter against the target, from their headers; a failed check ends the plan here."""
    subject: str
    why: str


@dataclass(frozen=True)
class DryRun:
    """Let the engine on the host read the command itself, before anything is written; a refusal ends the plan here."""
    subject: str
    why: str


@dataclass(frozen=True)
class Secrets:
    """Write variables of this machine's environment into a file that only its user reads. Never their values here."""
    path: str
    names: tuple[str, ...]
    why: str

    @property
    def subject(self) -> str:
        return f"{', '.join(self.names)} in {self.path}"


@dataclass(frozen=True)
class Free:
    """Wait until the GPUs hold nothing of what was stopped."""
    why: str
    within_s: float = 60.0
    subject = "GPUs"


@dataclass(frozen=True)
class Claim:
    """Leave a note on the host that says who uses its GPUs. seen: paths of notes that are no hindrance."""
    unit: Unit
    why: str
    seen: tuple[str, ...] = ()

    @property
    def subject(self) -> str:
        return self.unit.name


@dataclass(frozen=True)
class Stop:
    """Stop a unit of ours: its whole tree, until its port is closed."""
    name: str
    why: str
    timeout_s: float = 10.0

    @property
    def subject(self) -> str:
        return self.name


@dataclass(frozen=True)
class Start:
    """Write the unit and start it.

    text     the unit as it will be on the host, for a reader
    before   as it is there now; "" where it is not
    """
    unit: Unit
    why: str
    text: str = field(default="", repr=False)
    before: str = field(default="", repr=False)

    @property
    def subject(self) -> str:
        return self.unit.name


@dataclass(frozen=True)
class Healthy:
    """Wait until the service answered a real generation."""
    unit: str
    within_s: float
    why: str

    @property
    def subject(self) -> str:
        return self.unit


@dataclass(frozen=True)
class Forget:
    """Delete a stopped unit: its definition, state and log."""
    name: str
    why: str

    @property
    def subject(self) -> str:
        return self.name


@dataclass(frozen=True)
class Remove:
    """Delete what is ours in a folder below the kit's root on the host, and the folder once it is empty.

    only   names of ours, as shell patterns: `host.root` may be a disk where somebody has models/ or bin/ too
    """
    path: str
    why: str
    only: tuple[str, ...] = ("*",)

    @property
    def subject(self) -> str:
        return self.path


Step = Write | Run | Fetch | Check | DryRun | Secrets | Stop | Free | Claim | Start | Healthy | Forget | Remove


def diff(before: str, text: str) -> Text:
    """What changes in a unit on the host, as a unified diff; all of it where there was none."""
    return Text("\n".join(unified_diff(before.splitlines(), text.splitlines(), "on the host", "planned", n=3,
                                       lineterm="")))


@dataclass(frozen=True)
class Plan:
    """Numbered steps with their reasons; empty when the host is as wanted.

    >>> kit.plan(exp, survey)
    1. start    laptop-baseline   it is not running
    """

    steps: tuple[Step, ...]
    experiment: Experiment
    want: str = "serving"

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    def rows(self) -> list[tuple[str, str, str]]:
        """(verb, subject, why)."""
        return [(type(s).__name__.lower(), s.subject, s.why) for s in self.steps]

    @property
    def diff(self) -> Text:
        """The unit that is started, as a unified diff against what is on the host; "" where none is started."""
        return next((diff(step.before, step.text) for step in self.steps if isinstance(step, Start)), Text())

    def __repr__(self) -> str:
        if not self.steps:
            return f"nothing to do: {self.experiment.name} is {self.want} as wanted"
        rows = self.rows()
        width = max(len(subject) for _, subject, _ in rows)
        return "\n".join(f"{i}. {verb:8} {subject:{width}}  {why}" for i, (verb, subject, why) in enumerate(rows, 1))

    def _repr_html_(self) -> str:
        if not self.steps:
            return f"<p>{html.escape(repr(self))}</p>"
        head = "".join(f"<th style='text-align:left'>{h}</th>" for h in ("", "step", "on", "why"))
        rows = "".join("<tr>" + "".join(f"<td style='text-align:left'>{html.escape(str(c))}</td>" for c in (i, *row))
                       + "</tr>" for i, row in enumerate(self.rows(), 1))
        return f"<table><tr>{head}</tr>{rows}</table>"
