"""Small texts that several views need: durations, and errors in three lines. Pure; never raises."""

from __future__ import annotations

import re

from kit.errors import KitError


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
