"""What a server's own lines tell of its work: accept length over time, cache pressure, graphs, throughput."""

from __future__ import annotations

from dataclasses import dataclass, field

WINDOWS = 32        # at most; neighbours are put together when there are more
NEARLY_FULL = 0.9   # share of the cache in use


@dataclass
class Window:
    """Some neighbouring decode lines. `weight`: running requests, each verifies once per step."""

    first: int          # line number
    weight: float = 0.0
    accepted: float = 0.0
    lines: int = 0
    tokens_per_s: float = 0.0

    def take(self, other: Window) -> None:
        self.weight += other.weight
        self.accepted += other.accepted
        self.lines += other.lines
        self.tokens_per_s += other.tokens_per_s


@dataclass
class Serving:
    """Filled line by line; bounded. The first line after idle is dropped: its rate spans the idle time."""

    windows: list[Window] = field(default_factory=list)
    per_window: int = 1
    kept: int = 0
    dropped: int = 0
    eager: int = 0              # lines without a CUDA graph
    ones: int = 0               # lines whose accept length is exactly 1
    accepting: int = 0          # lines that bear an accept length
    crowded: int = 0            # lines with the cache nearly full
    fullest: float = 0.0
    longest_queue: int = 0
    first: int = 0
    last: int = 0
    _idle: dict[bytes, bool] = field(default_factory=dict)

    def idle(self, who: bytes) -> None:
        self._idle[who] = True

    def line(self, number: int, who: bytes, running: float, length: float | None, tokens_per_s: float,
             usage: float | None, queue: int, graph: bool | None) -> None:
        """One line of a server about its last steps."""
        self.first, self.last = self.first or number, number
        self.longest_queue = max(self.longest_queue, queue)
        if usage is not None:
            self.fullest = max(self.fullest, usage)
            self.crowded += usage > NEARLY_FULL
        self.eager += graph is False
        if length is not None:
            self.accepting += 1
            self.ones += length == 1.0
        if self._idle.get(who, True):
            self._idle[who] = False
            self.dropped += 1
            return
        self.kept += 1
        weight = max(running, 1.0) if length is not None else 0.0
        self._add(Window(number, weight, weight * (length or 0.0), 1, tokens_per_s))

    def accept(self, number: int, length: float, weight: float = 1.0) -> None:
        """An accept length that stands alone."""
        self.first, self.last = self.first or number, number
        self.accepting += 1
        self.ones += length == 1.0
        self.kept += 1
        self._add(Window(number, weight, weight * length, 1))

    def _add(self, window: Window) -> None:
        if self.windows and self.windows[-1].lines < self.per_window:
            self.windows[-1].take(window)
            return
        if len(self.windows) == WINDOWS:
            for left, right in zip(self.windows[::2], self.windows[1::2]):
                left.take(right)
            del self.windows[1::2]
            self.per_window *= 2
        self.windows.append(window)

    @property
    def accept_length(self) -> float | None:
        """Mean tokens per verify step, weighted by the requests that ran."""
        weight = sum(w.weight for w in self.windows)
        return sum(w.accepted for w in self.windows) / weight if weight else None

    @property
    def over_time(self) -> list[tuple[int, float]]:
        """(line number, accept length) of each window."""
        return [(w.first, w.accepted / w.weight) for w in self.windows if w.weight]

    @property
    def tokens_per_s(self) -> float | None:
        """Mean of the lines' own rates, the first after idle left out."""
        rated = [w for w in self.windows if w.tokens_per_s]
        return sum(w.tokens_per_s for w in rated) / sum(w.lines for w in rated) if rated else None
