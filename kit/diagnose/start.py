"""One start of a server, as its lines tell it: phases, exceptions, ends, and what it served."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from kit.diagnose.marks import Cause, Mark
from kit.diagnose.serving import Serving
from kit.diagnose.shapes import Shape, seconds

KEPT = 300          # characters of a line that is quoted
TRACED = 2000       # function names remembered

WANTED = {"attention_backend", "prefill_attention_backend", "decode_attention_backend", "speculative_algorithm",
          "speculative_draft_model_path", "speculative_num_steps", "speculative_eagle_topk",
          "speculative_num_draft_tokens", "speculative_draft_attention_backend", "mem_fraction_static",
          "disable_cuda_graph", "disaggregation_mode", "max_running_requests", "tp_size", "load_format", "version"}
_PRINTED = re.compile(r"(\w+)=(?:'([^']*)'|([^,()' ]+))")
_FLAG = re.compile(r"--([a-z][\w-]*)(?:[ =]([^\s-][^\s]*))?")

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
    """A cause's line: the first, how often, and the phase it fell in."""

    cause: Cause
    line: Line
    groups: list[bytes]
    phase: str
    count: int = 1
    last: int = 0


@dataclass
class Note:
    """Something worth knowing that stops nothing."""

    meaning: str
    line: Line
    count: int = 0


class Start:
    """Takes marks (`take`), keeps what matters, in bounded memory."""

    def __init__(self, restarts: int = 0):
        self.restarts = restarts
        self.args: dict[str, str] = {}
        self.printed = False        # the server itself printed its arguments
        self.phases: dict[str, Phase] = {}
        self.hits: dict[int, Hit] = {}
        self.types: list[str] = []  # classes of the models that were loaded
        self.moved: Line | None = None      # the last line that began or ended a phase
        self.trace: set[str] = set()
        self.first_raised: Line | None = None
        self.last_raised: Line | None = None
        self.deaths: dict[str, Line] = {}       # the first of each kind
        self.last_death: Line | None = None
        self.codes: set[int] = set()
        self.stopped: Line | None = None
        self.outside: Line | None = None
        self.ready: Line | None = None
        self.alive = 0              # number of the last line that shows it working
        self.notes: dict[str, Note] = {}
        self.progress = ""          # "2/33", of the last progress bar
        self.nccl: tuple[str, Line] | None = None   # NCCL's last step, while nothing came after it
        self.transports: Counter[str] = Counter()
        self.prefix_hits = 0
        self.retracted = 0
        self.tokens = 0             # that the cache holds
        self.serving = Serving()
        self.sources: set[bytes] = set()
        self.marks = 0
        self.now = ""               # id of the phase under way, else of the last one

    # -------------------------------------------------------- one method per kind of mark

    def take(self, mark: Mark, line: Line, groups: list[bytes]) -> None:
        self.marks += mark.kind not in ("frame", "progress", "restart", "raised")
        getattr(self, "on_" + mark.kind)(mark, line, groups)

    def on_begin(self, mark: Mark, line: Line, groups: list[bytes]) -> None:
        phase = self._phase(mark, line, groups)
        phase.began.setdefault(line.who, line.time)
        self.moved, self.progress = line, ""
        self.now, self.nccl = phase.id, None

    def on_end(self, mark: Mark, line: Line, groups: list[bytes]) -> None:
        phase = self._phase(mark, line, groups)
        phase.ended.setdefault(line.who, line.time)
        self.types += [g.decode() for g in groups if g[:1].isupper() and len(self.types) < 64]
        self.moved = line
        printed = next((float(g) for g in groups if re.fullmatch(rb"\d+\.?\d*", g)), None)
        took = printed if printed is not None else apart(phase.began.get(line.who), line.time)
        if took is not None:
            phase.seconds = max(took, phase.seconds or 0.0)
        self.now, self.nccl = self.open.id if self.open else phase.id, None

    def on_point(self, mark: Mark, line: Line, groups: list[bytes]) -> None:
        """A phase that lasts until the next one is named."""
        if mark.id not in self.phases:
            self._close_point(line)
            self.moved = line
            self.phases[mark.id] = Phase(mark.id, mark.meaning, line, {line.who: line.time}, point=True)
            self.now = mark.id

    def on_ready(self, mark: Mark, line: Line, groups: list[bytes]) -> None:
        self._close_point(line)
        for phase in self.phases.values():
            if phase.id in ("warmup", "listening") and phase.open:
                phase.ended = dict.fromkeys(phase.began, line.time)
                phase.seconds = apart(phase.line.time, line.time)
        self.ready, self.now, self.nccl, self.alive = self.ready or line, "ready", None, line.number

    def on_cause(self, mark: Cause, line: Line, groups: list[bytes]) -> None:
        hit = self.hits.get(id(mark))
        if hit:
            hit.count, hit.last = hit.count + 1, line.number
        elif not self.stopped and re.search(mark.phase, self.now):
            self.hits[id(mark)] = Hit(mark, line, groups, self.now, last=line.number)

    def on_death(self, mark: Mark, line: Line, groups: list[bytes]) -> None:
        if self.stopped or (mark.id == "main-exited" and groups[:2] == [b"exited", b"0"]):
            return
        self.deaths.setdefault(mark.id, line)
        self.last_death = line
        self.codes |= {int(g) for g in groups if re.fullmatch(rb"-?\d{1,4}", g)}

    def on_stop(self, mark: Mark, line: Line, groups: list[bytes]) -> None:
        self.stopped = self.stopped or line

    def on_stopping(self, mark: Mark, line: Line, groups: list[bytes]) -> None:
        if not self.deaths and not self.hits:     # a unit that failed is "stopping" as well
            self.stopped = self.stopped or line

    def on_outside(self, mark: Mark, line: Line, groups: list[bytes]) -> None:
        self.outside = self.outside or line

    def on_raised(self, mark: Mark, line: Line, groups: list[bytes]) -> None:
        if not self.stopped:
            self.first_raised, self.last_raised = self.first_raised or line, line

    def on_frame(self, mark: Mark, line: Line, groups: list[bytes]) -> None:
        if len(self.trace) < TRACED:
            self.trace.add(groups[0].decode("ascii", "replace") if groups else mark.id)

    def on_progress(self, mark: Mark, line: Line, groups: list[bytes]) -> None:
        self.progress = groups[-1].decode()

    def on_note(self, mark: Mark, line: Line, groups: list[bytes]) -> None:
        note = self.notes.setdefault(mark.id, Note(mark.meaning, line))
        note.count += 1

    def on_nccl(self, mark: Mark, line: Line, groups: list[bytes]) -> None:
        self.nccl = (mark.id, line)

    def on_transport(self, mark: Mark, line: Line, groups: list[bytes]) -> None:
        self.transports[groups[0].decode()] += 1

    def on_full(self, mark: Mark, line: Line, groups: list[bytes]) -> None:
        self.retracted += 1

    def on_sized(self, mark: Mark, line: Line, groups: list[bytes]) -> None:
        self.tokens = self.tokens or int(groups[0].replace(b",", b""))

    def on_args(self, mark: Mark, line: Line, groups: list[bytes]) -> None:
        self.args |= arguments(line.raw.decode("utf-8", "replace"))
        if mark.id == "args":
            self.sources.add(line.source)
            self.printed = True

    # ------------------------------------------------------------------- work

    def on_served(self, mark: Mark, line: Line, groups: list[bytes]) -> None:
        self.alive = line.number

    def on_prefill(self, mark: Mark, line: Line, groups: list[bytes]) -> None:
        self.alive = line.number
        self.prefix_hits += groups[1] != b"0"
        if groups[2] == b"0":
            self.serving.idle(line.who)

    def on_decode(self, mark: Mark, line: Line, groups: list[bytes]) -> None:
        running, usage, length, graph, rate, queue = groups
        self.alive = line.number
        self.serving.line(line.number, line.who, float(running or 1), float(length) if length else None, float(rate),
                          float(usage) if usage else None, int(queue or 0), graph == b"True")

    def on_rate(self, mark: Mark, line: Line, groups: list[bytes]) -> None:
        rate, running, waiting, usage = (float(g) for g in groups)
        if rate or running:
            self.alive = line.number
        self.serving.line(line.number, line.who, running, None, rate, usage / 100, int(waiting), None)
        if not running:
            self.serving.idle(line.who)

    def on_drafted(self, mark: Mark, line: Line, groups: list[bytes]) -> None:
        self.serving.accept(line.number, float(groups[0]), float(groups[1]) or 1.0)

    def on_accept(self, mark: Mark, line: Line, groups: list[bytes]) -> None:
        self.serving.accept(line.number, float(groups[0]))

    # -------------------------------------------------------------- questions

    def _close_point(self, line: Line) -> None:
        last = self.phases.get(self.now)
        if last and last.point:
            last.seconds = apart(last.line.time, line.time)

    def _phase(self, mark: Mark, line: Line, groups: list[bytes]) -> Phase:
        id = mark.id
        if id == "load":
            drafter = any(re.search(rb"Eagle|Draft|DSpark|DFlash|NextN|MTP", g) for g in groups)
            target = self.phases.get("load-target")
            again = target is not None and line.who in target.ended
            id = "load-drafter" if drafter or again else "load-target"
        elif id == "capture":
            label = groups[0].decode().strip() if groups else ""
            id = "capture-" + label.replace(" ", "-") if label else "capture"
        elif (first := self.phases.get(id)) and line.who in first.ended:
            id += "-drafter"
        if id not in self.phases:
            self.phases[id] = Phase(id, mark.meaning, line)
        return self.phases[id]

    @property
    def ready_line(self) -> int:
        return self.ready.number if self.ready else 0

    @property
    def open(self) -> Phase | None:
        """The last phase that some rank has not ended."""
        return next((p for p in reversed(self.phases.values()) if p.open), None)


def apart(began: Time, ended: Time) -> float | None:
    if began is None or ended is None or began[0] != ended[0]:
        return None
    return max(0.0, ended[1] - began[1])


def arguments(line: str) -> dict[str, str]:
    """What `ServerArgs(a='b', …)` or a command line of at least two flags says of the arguments in WANTED."""
    if "ServerArgs(" in line:
        found = {m[1]: m[2] if m[2] is not None else m[3] for m in _PRINTED.finditer(line)}
    else:
        found = {m[1].replace("-", "_"): m[2] or "True" for m in _FLAG.finditer(line)}
        if len(found) < 2 or "error: " in line:
            return {}
    return {k: v for k, v in found.items() if k in WANTED}


def time_of(clock: str, stamp: bytes, transport_s: float | None) -> Time:
    if transport_s is not None:
        return "transport", transport_s
    found = seconds(clock, stamp) if clock else None
    return None if found is None else (clock, found)
