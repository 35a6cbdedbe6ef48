"""From what one start said to findings: state, cause, where it stopped, what it was not."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from kit.diagnose.records import Hit, Line, apart
from kit.diagnose.ruled_out import ruled_out
from kit.diagnose.start import Start
from kit.diagnose.working import working
from kit.findings import Finding

TRACEBACKS = 1000                   # lines that the ranks' tracebacks take between an exception and the end
SILENT_S = 60.0                     # NCCL's first collective takes seconds


@dataclass(frozen=True)
class Summary:
    """What is remembered of a start that is over."""

    state: str
    cause: str


def summary(start: Start) -> Summary:
    state = state_of(start)
    found = cause_of(start) if state == "failed" else None
    return Summary(state, found.id if found and found.verdict == "fail" else "")


def state_of(start: Start) -> str:
    if fatal(start) or (start.last_death and start.last_death.number > start.serving.alive):
        return "failed"
    raised = start.torn or start.last_raised
    if raised and not start.ready and not survived(start, raised, start.raised_begun):
        return "failed"
    if start.stopped:
        return "stopped"
    if start.ready or start.serving.alive or start.serving.accepting:
        return "serving"
    return "starting" if start.phases or start.args or start.nccl or start.notes else "unreadable"


def fatal(start: Start) -> list[Hit]:
    """The hits that can have ended it, earliest first; on one line in the order of the tables."""
    hits = [h for h in start.hits.values() if h.cause.verdict != "warn" and holds(start, h)
            and not survived(start, h.line, h.begun, h.last)]
    return sorted(hits, key=lambda h: h.line.number)


def holds(start: Start, hit: Hit) -> bool:
    """Whether the rest of the log allows the cause."""
    wanted = hit.cause.trace
    if wanted and (start.trace or hit.cause.only_traced) and not start.trace & set(wanted):
        return False
    return hit.cause.when(start, hit)


def survived(start: Start, line: Line, begun: int, last: int = 0) -> bool:
    """It worked on after this line, or its start went on to two more phases. `begun`: phases before the line."""
    last = max(last, line.number)
    died = start.last_death.number if start.last_death else 0
    if start.serving.alive > last:
        return not 0 < died - last < TRACEBACKS
    return len(start.phases) >= begun + 2 and not last < died <= start.moved.number


def cause_of(start: Start) -> Finding | None:
    """Why it failed; verdict unknown where the log does not tell."""
    hits = fatal(start)
    if hits:
        hit = hits[0]
        again = f" ({hit.count} times)" if hit.count > 1 else ""
        return Finding(hit.cause.id, hit.cause.verdict, hit.cause.meaning + again, hit.cause.why, hit.cause.fix,
                       quote(hit.line, *(h.line for h in hits[1:3]), start.first_raised))
    if start.killed and not start.told and (start.phases or start.printed or "main-exited" not in start.deaths):
        return Finding("killed", "fail", "a process of the server was killed (SIGKILL), and it raised nothing before",
                       "somebody outside did it: mostly the kernel's OOM killer, for want of the host's memory, "
                       "not the GPU's", "journalctl -k | grep -i oom; memory.events of the unit's control group",
                       quote(*start.deaths.values()))
    said = f"it raised {start.first_raised.text[:120]}" if start.first_raised else \
        "the log breaks off in a traceback" if start.torn else "it names no exception"
    return Finding("cause", "unknown", f"it failed, and the cause is not known: {said}",
                   "no pattern of the tables fits", "read the lines around the evidence",
                   quote(start.first_raised, start.last_raised, start.torn, *start.deaths.values()))


def findings(start: Start, state: str, last: Line | None, silent_s: float | None, starts: int, restarts: int,
             past: list[Summary]) -> list[Finding]:
    """Everything worth saying about the start that is judged."""
    if state == "unreadable":
        return []
    found = [cause_of(start)] if state == "failed" else []
    found += _where(start, state, last)
    found += _phases(start)
    if state in ("failed", "starting"):
        found += ruled_out(start, state)
    found += _nccl(start, state, silent_s)
    found += _starts(state, starts, restarts, past)
    found += [Finding(h.cause.id, "warn", h.cause.meaning, h.cause.why, h.cause.fix, quote(h.line))
              for h in start.hits.values() if holds(start, h) and (h.cause.verdict == "warn" or survived(
                  start, h.line, h.begun, h.last)) and h.cause.id not in {f.id for f in found}]
    if state == "serving" and start.last_raised and start.last_raised.number > start.ready_line:
        found.append(Finding("exceptions", "warn", "exceptions while serving, the server went on",
                             evidence=quote(start.first_raised, start.last_raised)))
    found += [Finding(id, "warn", note.meaning, evidence=quote(note.line))
              for id, note in start.notes.items() if note.meaning]
    return found + working(start)


def _where(start: Start, state: str, last: Line | None) -> list[Finding]:
    place, progress = where(start), f" ({start.progress} done)" if start.progress and start.open else ""
    if state == "failed":
        return [Finding("stopped-at", "warn", f"it stopped {place}{progress}",
                        evidence=quote(start.moved, *start.deaths.values()))]
    if state == "stopped":
        return [Finding("ended", "pass", f"ended from outside {place}{progress}", "it was told to stop; what its "
                        "processes say after that is no failure", evidence=quote(start.stopped))]
    if state == "starting":
        took = apart(start.moved.time, last.time) if start.moved and last else None
        since = f", for {took:.0f} s by the last stamp" if took else ""
        over = "; it was ended from outside" if start.outside else ""
        return [Finding("unfinished", "warn", f"slow or cut, not failed: the log ends {place}{progress}{since}{over}",
                        "no exception, no exit of a process", "give it more time, or look at the live service",
                        quote(start.moved, start.outside, last))]
    since = f"ready since line {start.ready.number}" if start.ready else "it works"
    return [Finding("serving", "pass", since, evidence=quote(start.ready, last))]


def where(start: Start) -> str:
    """In words: in which phase the last line falls."""
    if start.ready:
        return "while serving"
    if start.open:
        phase, ranks = start.open, [w.decode() for w in start.open.open if w]
        return f"in {phase.id}" + (f" of {', '.join(sorted(ranks)[:8])}" if ranks else "")
    if start.now:
        phase = start.phases.get(start.now)
        return f"in {start.now}" if phase and phase.point else f"after {start.now}"
    if start.printed:
        return "before the first phase"
    if "prepare_server_args" in start.trace:
        return "while it read its arguments"
    return "in a phase that the log does not show"


def _phases(start: Start) -> list[Finding]:
    if not start.phases:
        return []
    parts = []
    for p in start.phases.values():
        took = f" {p.seconds:.1f} s" if p.seconds is not None else ""
        parts.append(p.id + took + (" (not ended)" if p is start.open else ""))
    ranks = {w for p in start.phases.values() for w in (*p.began, *p.ended) if w}
    return [Finding("phases", "pass", " · ".join(parts) + (f" · {len(ranks)} ranks" if len(ranks) > 1 else ""),
                    "the longest rank counts" if len(ranks) > 1 else "",
                    evidence=quote(*(p.line for p in start.phases.values())))]


def _nccl(start: Start, state: str, silent_s: float | None) -> list[Finding]:
    """A log whose last step is NCCL's: a first collective that never returns writes nothing more."""
    found = []
    if start.transports:
        ways = ", ".join(f"{n} via {way}" for way, n in start.transports.most_common())
        found.append(Finding("nccl-transport", "warn" if set(start.transports) == {"SHM"} else "pass",
                             f"NCCL channels: {ways}", "shared memory is slower than peer to peer"
                             if "SHM" in start.transports else ""))
    if not start.nccl or state != "starting":
        return found
    id, line = start.nccl
    hung = silent_s is not None and silent_s >= SILENT_S
    if id == "nccl-rings":      # all channels were set up: what hangs later is not shown
        return [*found, Finding("nccl-hang", "unknown", "nothing follows after NCCL connected its rings",
                                "a log cannot show whether it hangs, and not why",
                                "try NCCL_P2P_DISABLE=1; the channels then go via SHM", quote(line))]
    what = f"the first collective hangs: nothing for {silent_s:.0f} s after NCCL's start" if hung else \
        "nothing follows after NCCL's start: if that lasts a minute, the first collective hangs"
    return [*found, Finding("nccl-hang", "fail" if hung else "warn", what,
                            "peer to peer over PCIe that does not work: IOMMU or ACS in the way, or the NCCL build",
                            "NCCL_P2P_DISABLE=1 and --disable-custom-all-reduce; then IOMMU and ACS off", quote(line))]


def _starts(state: str, starts: int, restarts: int, past: list[Summary]) -> list[Finding]:
    failed = [s for s in past if s.state == "failed"]
    if restarts >= 2 or (state == "failed" and len(failed) >= 2):
        causes = Counter(s.cause or "unknown" for s in failed)
        return [Finding("restart-loop", "warn", f"started again and again: {max(restarts, starts - 1)} restarts",
                        "causes: " + ", ".join(f"{c} × {n}" for c, n in causes.most_common(5)) if causes else "",
                        "RestartPreventExitStatus=1 2, or a StartLimitBurst")]
    if failed:
        return [Finding("earlier-start", "warn", f"{len(failed)} earlier start(s) in this log failed",
                        ", ".join(s.cause or "cause unknown" for s in failed[:5]))]
    return []


def quote(*lines: Line | None) -> str:
    """Evidence: "line: text", each once, in the order of the log."""
    unique = {line.number: line for line in lines if line is not None}
    return "\n".join(f"{n}: {unique[n].text}" for n in sorted(unique))
