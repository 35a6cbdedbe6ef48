"""One start of a server, as its lines tell it: phases, exceptions, ends, and what it served."""

from __future__ import annotations

import re
from collections import Counter

from kit.diagnose.marks import Cause, Mark
from kit.diagnose.records import Hit, Line, Note, Phase, apart
from kit.diagnose.serving import Serving

TRACED = 2000       # function names remembered
KILLED = {b"-9", b"137", b"KILL"}       # how an end by SIGKILL is written

WANTED = {"attention_backend", "prefill_attention_backend", "decode_attention_backend", "speculative_algorithm",
          "speculative_draft_model_path", "speculative_num_steps", "speculative_eagle_topk",
          "speculative_num_draft_tokens", "speculative_draft_attention_backend", "mem_fraction_static",
          "disable_cuda_graph", "disaggregation_mode", "max_running_requests", "tp_size", "load_format", "version"}
_PRINTED = re.compile(r"(\w+)=(?:'([^']*)'|([^,()' ]+))")
_FLAG = re.compile(r"--([a-z][\w-]*)(?:[ =]([^\s-][^\s]*))?")

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
        self.torn: Line | None = None       # a traceback whose exception did not come yet
        self.raised_begun = 0       # phases begun before it
        self.deaths: dict[str, Line] = {}       # the first of each kind
        self.last_death: Line | None = None
        self.killed: Line | None = None     # the first that tells of a SIGKILL
        self.stopped: Line | None = None
        self.outside: Line | None = None
        self.ready: Line | None = None
        self.notes: dict[str, Note] = {}
        self.progress = ""          # "2/33", of the last progress bar
        self.nccl: tuple[str, Line] | None = None   # NCCL's last step, while nothing came after it
        self.transports: Counter[str] = Counter()
        self.retracted = 0
        self.tokens = 0             # that the cache holds
        self.serving = Serving()
        self.sources: set[bytes] = set()
        self.marks = 0
        self.now = ""               # id of the phase under way, else of the last one

    # -------------------------------------------------------- one method per kind of mark

    def take(self, mark: Mark, line: Line, groups: list[bytes]) -> None:
        self.marks += mark.kind not in ("frame", "progress", "restart", "raised", "traceback")
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
        self.ready, self.now, self.nccl = self.ready or line, "ready", None

    def on_cause(self, mark: Cause, line: Line, groups: list[bytes]) -> None:
        hit = self.hits.get(id(mark))
        if hit:
            hit.count, hit.last = hit.count + 1, line.number
        elif not self.stopped and re.search(mark.phase, self.now):
            self.hits[id(mark)] = Hit(mark, line, groups, len(self.phases), last=line.number)

    def on_death(self, mark: Mark, line: Line, groups: list[bytes]) -> None:
        if self.stopped or (mark.id == "main-exited" and groups[:2] == [b"exited", b"0"]):
            return
        self.deaths.setdefault(mark.id, line)
        self.last_death = line
        if KILLED & {*groups}:
            self.killed = self.killed or line

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
            self.raised_begun = len(self.phases)
            self.torn = None

    def on_traceback(self, mark: Mark, line: Line, groups: list[bytes]) -> None:
        if not self.stopped:
            self.torn, self.raised_begun = line, len(self.phases)

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
        self.serving.alive = line.number

    def on_rate(self, mark: Mark, line: Line, groups: list[bytes]) -> None:
        rate, running, waiting, usage = (float(g) for g in groups)
        if rate or running:
            self.serving.alive = line.number
        self.serving.line(line.number, line.who, running, None, rate, usage / 100, int(waiting), False)
        if not running:
            self.serving.idle(line.who)

    def on_drafted(self, mark: Mark, line: Line, groups: list[bytes]) -> None:
        self.serving.accept(line.number, float(groups[0]), float(groups[1]) or 1.0)

    def on_accept(self, mark: Mark, line: Line, groups: list[bytes]) -> None:
        self.serving.accept(line.number, float(groups[0]))

    # -------------------------------------------------------------- questions

    @property
    def told(self) -> bool:
        """An exception, or a child that reports one, comes before the line that tells of a SIGKILL. What the parent
        raises with or after that line only repeats it."""
        before = (self.first_raised, self.deaths.get("child"))
        return "scheduler" in self.deaths or any(x and not (self.killed and x.number >= self.killed.number)
                                                 for x in before)

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
        """The last phase, where some rank has not ended it: a later one shows that the earlier are over."""
        last = next(reversed(self.phases.values()), None)
        return last if last and last.open else None


def arguments(line: str) -> dict[str, str]:
    """What `ServerArgs(a='b', …)` or a command line of at least two flags says of the arguments in WANTED."""
    if "ServerArgs(" in line:
        found = {m[1]: m[2] if m[2] is not None else m[3] for m in _PRINTED.finditer(line)}
    else:
        found = {m[1].replace("-", "_"): m[2] or "True" for m in _FLAG.finditer(line)}
        if len(found) < 2 or "error: " in line:
            return {}
    return {k: v for k, v in found.items() if k in WANTED}
