"""A start as its log tells it: the phases it went through, and the line that explains its end. Pure."""

from __future__ import annotations

import re

from kit.seams import Phase


def explain(failures: tuple[Phase, ...], said: list[str]) -> tuple[Phase, str] | None:
    """The first known failure, in the order of the table, and the line that shows it."""
    return next(((f, line) for f in failures for line in said if re.search(f.pattern, line)), None)


class Stages:
    """The phases of a start as its lines come: `str()` gives each with the seconds since the first line.

    >>> print(stages)
    arguments 2 s, load-target 25 s, kv-cache 238 s, load-drafter 240 s, …
    """

    def __init__(self, known: tuple[Phase, ...]):
        self.known, self.seen, self.counts = known, {}, {}
        self.first_s: float | None = None
        self.now_s: float | None = None
        self.set_back_s = 0.0           # by how much the host's clock was set back meanwhile

    def _steady(self, time_s: float | None) -> float | None:
        """The time on a clock that never goes back. (One that is set on cannot be told from a long step.)"""
        if time_s is None:
            return None
        if self.now_s is not None and time_s + self.set_back_s < self.now_s - 1:    # lines may overtake each other
            self.set_back_s = self.now_s - time_s
        self.now_s = time_s + self.set_back_s
        return self.now_s

    def see(self, time_s: float | None, line: str) -> None:
        time_s = self._steady(time_s)
        self.first_s = time_s if self.first_s is None else self.first_s
        for phase in self.known:
            if phase.id not in self.seen and re.search(phase.pattern, line):
                self.counts[phase.id] = self.counts.get(phase.id, 0) + 1
                if self.counts[phase.id] == phase.nth:
                    self.seen[phase.id] = (phase.id, time_s, phase.meaning)

    @property
    def last(self) -> str:
        """What the start was doing last, in words; "" before the first phase."""
        return list(self.seen.values())[-1][2] if self.seen else ""

    def __str__(self) -> str:
        first = self.first_s or 0.0
        told = ", ".join(id if at is None else f"{id} {at - first:.0f} s" for id, at, _ in self.seen.values()) \
            or "no phase was seen in its log"
        back = f" (the host's clock was set back by {self.set_back_s:.0f} s meanwhile)"
        return told + (back if self.set_back_s else "")


def phases(known: tuple[Phase, ...], said: list[tuple[float | None, str]]) -> list[tuple[str, float | None, str]]:
    """(phase, time_s, meaning) for each phase a start went through, first occurrence each, in log order."""
    stages = Stages(known)
    for time_s, line in said:
        stages.see(time_s, line)
    return list(stages.seen.values())
