"""What a line can say: the shape of the tables in this package.

Patterns are searched in a line whose digits were all made 0 (that is how lines
are told apart quickly), and confirmed on the line itself where the pattern
holds digits of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

_DIGITS_OUTSIDE_BRACES = re.compile(r"\{[\d,]+\}|\\.|[1-9]")


@dataclass(frozen=True)
class Mark:
    """A line worth noticing. `kind` names the method of `kit.diagnose.start.Start` that takes it."""

    kind: str
    id: str
    pattern: str
    meaning: str = ""

    @cached_property
    def relaxed(self) -> re.Pattern[bytes]:
        text = _DIGITS_OUTSIDE_BRACES.sub(lambda m: "0" if len(m[0]) == 1 else m[0], self.pattern)
        return re.compile(text.encode())

    @cached_property
    def exact(self) -> re.Pattern[bytes] | None:
        """Needed where `relaxed` says too much."""
        own = re.compile(self.pattern.encode())
        return None if own.pattern == self.relaxed.pattern else own


def _always(start: Any, hit: Any) -> bool:
    return True


@dataclass(frozen=True)
class Cause(Mark):
    """A line that tells why.

    verdict  "fail": the cause. "warn": it costs, it does not stop. "unknown": several causes print this line.
    trace    function names, one of which must be in the traceback where the log holds one; `only_traced`: must hold one
    phase    regular expression on the phase in which it was printed, "" for any
    when     what else the log must say
    """

    kind: str = "cause"
    id: str = ""
    pattern: str = ""
    meaning: str = ""       # what happened, one sentence
    why: str = ""
    fix: str = ""
    verdict: str = "fail"
    trace: tuple[str, ...] = ()
    only_traced: bool = False
    phase: str = ""
    when: Callable[[Any, Any], bool] = _always


def cause(id: str, pattern: str, what: str, why: str = "", fix: str = "", **more: Any) -> Cause:
    return Cause("cause", id, pattern, what, why, fix, **more)
