"""What a server's own lines tell of its work: accept length over time, cache pressure, graphs, throughput."""

from __future__ import annotations

from dataclasses import dataclass, field

WINDOWS = 32        # at most; neighbours are put together when there are more
THOROUGH = 1 << 17  # decode lines of which each is read; of twice as many every second, and so on
NEARLY_FULL = 0.9   # share of the cache in use


@dataclass(slots=True)
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


@dataclass(slots=True)
class Serving:
    """Filled line by line; bounded. The first line after idle is dropped: its rate spans the idle time."""

    windows: list[Window] = field(default_factory=list)
    per_window: int = 1
    kept: int = 0
    dropped: int = 0
    every: int = 1              # of the decode lines that is read, and stands for the others
    eager: int = 0              # lines without a CUDA graph
    ones: int = 0               # lines whose accept length is exactly 1
    accepting: int = 0          # lines that bear an accept length
    crowded: int = 0            # lines with the cache nearly full
    fullest: float = -1.0      # share of the cache; -1 where no line told
    longest_queue: int = 0
    first: int = 0
    last: int = 0
    alive: int = 0              # number of the last line that shows it working
    prefix_hit: bool = False    # a prefill found cached tokens
    _busy: set[bytes] = field(default_factory=set)      # ranks that wrote a line since they were idle
    _came: int = 0              # decode lines, read or not

    def idle(self, who: bytes) -> None:
        self._busy.discard(who)

    def prefill(self, number: int, line: bytes, at: tuple[int, ...]) -> None:
        """`at`: where rank, new sequences, cached tokens and running requests stand. 0 running: it was idle before."""
        w0, w1, _, _, c0, c1, r0, r1 = at
        self.alive = number
        if line[r0:r1] == b"0":
            self._busy.discard(line[w0:w1])
        if not self.prefix_hit:
            self.prefix_hit = line[c0:c1] != b"0"

    def decode(self, number: int, line: bytes, at: tuple[int, ...]) -> None:
        """`at`: where rank, running requests, usage, accept length, graph, tokens/s and queue stand; 0, 0 for none."""
        w0, w1, r0, r1, u0, u1, a0, a1, g0, g1, t0, t1, q0, q1 = at
        self.alive = number
        self._came += 1
        if self._came % self.every and line[w0:w1] in self._busy:
            return
        if self._came == THOROUGH * self.every:
            self.every *= 2
        self.line(number, line[w0:w1], int(line[r0:r1]) if r1 else 1, float(line[a0:a1]) if a1 else None,
                  float(line[t0:t1]), float(line[u0:u1]) if u1 else -1.0, int(line[q0:q1]) if q1 else 0,
                  line[g0:g1] == b"False")

    def line(self, number: int, who: bytes, running: float, length: float | None, tokens_per_s: float,
             usage: float, queue: int, eager: bool) -> None:
        """One line of a server about its last steps; it stands for `every` of them."""
        n = self.every
        self.first, self.last = self.first or number, number
        self.longest_queue = max(self.longest_queue, queue)
        self.fullest = max(self.fullest, usage)
        self.crowded += n * (usage > NEARLY_FULL)
        self.eager += n * eager
        self.ones += n * (length == 1.0)
        self.accepting += n * (length is not None)
        if who not in self._busy:
            self._busy.add(who)
            self.dropped += 1
            return
        weight = (running or 1) if length is not None else 0
        self._add(Window(number, n * weight, n * weight * (length or 0.0), n, n * tokens_per_s))

    def accept(self, number: int, length: float, weight: float = 1.0) -> None:
        """An accept length that stands alone."""
        self.first, self.last = self.first or number, number
        self.ones += length == 1.0
        self.accepting += 1
        self._add(Window(number, weight, weight * length, 1))

    def _add(self, window: Window) -> None:
        """To the last window, or as one more; neighbours are put together where there are too many."""
        self.kept += window.lines
        if self.windows and self.windows[-1].lines < self.per_window:
            self.windows[-1].take(window)
            return
        if len(self.windows) == WINDOWS:
            for left, right in zip(self.windows[::2], self.windows[1::2], strict=True):
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
