"""What is kept of a log: lines that can be quoted, phases, hits."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from kit.diagnose.marks import Cause
from kit.diagnose.shapes import Shape, seconds

KEPT = 300          # characters of a line that is quoted

Time = tuple[str, float] | None     # (clock, seconds): only times of one clock compare


class Line(NamedTuple):
    """A line where something was read; what it tells of itself is worked out only when asked."""

    number: int
    raw: bytes
    shape: Shape
    transport_s: float | None = None

    @property
    def text(self) -> str:
        """For a reader, without what a launcher put in front, cut to a length that can be quoted."""
        return self.raw[self.shape.front:self.shape.front + 2 * KEPT].decode("utf-8", "replace").strip()[:KEPT]

    @property
    def time(self) -> Time:
        a, b = self.shape.stamp
        return time_of(self.shape.clock, self.raw[a:b], self.transport_s)

    @property
    def who(self) -> bytes:
        """Rank or actor."""
        a, b = self.shape.who
        return self.raw[a:b].strip()

    @property
    def source(self) -> bytes:
        """What a launcher put in front, that tells servers in one log apart."""
        return re.sub(rb"[\d:.T+-]{8,}", b"", self.raw[:self.shape.front])


@dataclass
class Phase:
    """A step of the start. `began` and `ended` by rank."""

    id: str
    meaning: str
    line: Line
    began: dict[bytes, Time] = field(default_factory=dict)
    ended: dict[bytes, Time] = field(default_factory=dict)
    seconds: float | None = None
    point: bool = False

    @property
    def open(self) -> list[bytes]:
        return [] if self.point else [who for who in self.began if who not in self.ended]


@dataclass
class Hit:
    """A cause's line: the first, and how often."""

    cause: Cause
    line: Line
    groups: list[bytes]
    begun: int          # phases that the start had begun by then
    count: int = 1
    last: int = 0


@dataclass
class Note:
    """Something worth knowing that stops nothing."""

    meaning: str
    line: Line
    count: int = 0


def apart(began: Time, ended: Time) -> float | None:
    if began is None or ended is None or began[0] != ended[0]:
        return None
    return max(0.0, ended[1] - began[1])


def time_of(clock: str, stamp: bytes, transport_s: float | None) -> Time:
    if transport_s is not None:
        return "transport", transport_s
    found = seconds(clock, stamp) if clock else None
    return None if found is None else (clock, found)
