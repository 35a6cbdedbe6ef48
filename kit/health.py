"""Healthy means: a real generation was answered, and where a drafter serves, it is of use. Else: not ready, or dead."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from kit.engines import engine
from kit.errors import CommandTimeout, NotHealthy, ServiceDied
from kit.following import recent, state, stop
from kit.seams import Acceptance, Host, Http, Phase
from kit.spec import Experiment
from kit.supervisors import supervisor

PROBE = "Say hello."
PROBE_TOKENS = 8
LAST_LINES = 6
WITHOUT_DRAFTER = ("none", "ngram", "suffix")   # what an n-gram finds depends on the text: nothing to hold it to
LEAST_ACCEPT_LENGTH = 1.2       # a wrong algorithm gives 1.00; the weakest head that fits gave 1.47 (LOG.md)
JUDGED_TOKENS = 300             # from so many on, the mean itself is judged
PROOF_PROMPTS = (
    "Explain in a few paragraphs how a bicycle stays upright while it is moving.",
    "def quicksort(items):\n    \"\"\"Return a sorted copy of items.\"\"\"\n",
    "The following is a list of the months of the year and what a gardener does in each of them.\n1. January:",
    "Q: Why is the sky blue?\nA:",
)


@dataclass(frozen=True)
class Proof:
    """What generations with a drafter showed. length None: nothing told how many drafts were accepted."""

    tokens: int
    length: float | None
    steps: float
    source: str             # where the acceptance is from
    took_s: float

    @property
    def useless(self) -> bool:
        """Below the least length; of few tokens only where chance cannot explain it (95 %, drafts as rare events)."""
        if self.length is None or not self.steps:
            return False
        accepted = (self.length - 1) * self.steps
        most = accepted if self.tokens >= JUDGED_TOKENS else accepted + 2 * accepted ** 0.5 + 3
        return most / self.steps < LEAST_ACCEPT_LENGTH - 1

    def __str__(self) -> str:
        told = f"accept length {self.length:.2f}" if self.length is not None else "nothing told the accept length"
        return f"{told} over {self.tokens} tokens in {self.took_s:.1f} s" + (f", from {self.source}" if self.source else
                                                                            "")


def probe(exp: Experiment, host: Host, timeout_s: float = 30.0) -> tuple[bool, str]:
    """(healthy, why not): one readiness request, then one real generation. No answer in time is not healthy yet."""
    try:
        return _asked(exp, host, timeout_s)
    except CommandTimeout as e:
        return False, e.what


def _asked(exp: Experiment, host: Host, timeout_s: float) -> tuple[bool, str]:
    eng = engine(exp.engine.name)
    ready = host.http(exp.serve.port, eng.ready_path(), timeout_s=timeout_s)
    if ready.status == 0:
        return False, "nobody listens yet"
    if ready.status != 200:
        return False, f"{eng.ready_path()} answers {ready.status}: loading"
    path, body = eng.generation(PROBE, PROBE_TOKENS, stream=False)
    answer = host.http(exp.serve.port, path, json.dumps(body).encode(), timeout_s)
    tokens = eng.generated(_json(answer))
    if tokens < 1:
        return False, f"a generation answered {answer.status} with {tokens} tokens: {answer.body[:120]!r}"
    return True, f"answered {tokens} tokens"


def prove(exp: Experiment, host: Host) -> Proof | str | None:
    """What the drafter of this arm is worth, by a few generations; a text where one failed; None without a drafter.

    From the answers where they tell, else from the counters around them, else from the server's own mean.
    """
    if exp.spec.algorithm in WITHOUT_DRAFTER:
        return None
    eng, port, began = engine(exp.engine.name), exp.serve.port, time.monotonic()

    def counters() -> Acceptance | None:
        page = host.http(port, eng.metrics_path())
        return eng.acceptance(page.body.decode("utf-8", "replace")) if page.status == 200 else None

    before, tokens, told = counters(), 0, []
    for path, body in eng.proof(PROOF_PROMPTS):
        answer = host.http(port, path, json.dumps(body).encode(), exp.bench.request_limit_s)
        made, acceptance = eng.proven(_json(answer))
        if made < 1:
            return f"a generation answered {answer.status}: {answer.body[:120]!r}"
        tokens += made
        told += [acceptance] if acceptance else []
    steps, accepted, source = sum(a.steps for a in told), sum(a.accepted for a in told), "its answers"
    if not told:
        after = counters()
        if after and before:
            window, source = after - before, "its counters"
            steps, accepted = window.steps, window.accepted
    took_s = time.monotonic() - began
    if steps:
        return Proof(tokens, 1 + accepted / steps, steps, source, took_s)
    mean = eng.accept_so_far(_json(host.http(port, eng.info_path()))) if eng.info_path() else None
    return Proof(tokens, mean, tokens / mean if mean else 0, "its mean since the start" if mean else "", took_s)


def wait_healthy(exp: Experiment, host: Host, within_s: float, on_line: Callable[[str], None],
                 check: Callable[[], None]) -> float:
    """Seconds from the unit's start until it is healthy.

    Raises ServiceDied at once when the process ended (with its last lines and,
    where the log says it, the cause), NotHealthy at the deadline, or when the
    drafter is of no use; what does not get healthy is stopped, its log stays.
    """
    sup, python, unit = supervisor(exp.host.supervisor), exp.host.python, exp.unit
    began, cursor, why, pause = time.monotonic(), "", "not asked yet", 0.1
    said: list[str] = []
    stages = Stages(engine(exp.engine.name).phases)

    def give_up(what: str, next: str) -> NotHealthy:
        stop(host, sup, python, unit, exp.serve.stop_within_s)
        return NotHealthy(f"{unit} {what}; it was stopped, its log is kept", where=f"{host.name}: {_tail(said)}",
                          next=next)

    def hear() -> None:
        nonlocal cursor, said
        new = recent(host, sup, python, unit, cursor)
        cursor = new[-1].cursor if new else cursor
        said = (said + [line.text for line in new])[-200:]
        for line in new:
            stages.see(line.time_s, line.text)
            on_line(line.text)

    while True:
        check()
        now = state(host, sup, python, unit)    # before the log: what it said last is then in it
        hear()
        if not now.running:
            raise died(exp, host, now.result or now.active, now.exit_code, now.signal, said)
        ok, why = probe(exp, host)
        proof = prove(exp, host) if ok else None
        if isinstance(proof, str):              # it answers, and not for long: the next look says whether it died
            ok, why = False, proof
        if isinstance(proof, Proof):
            on_line(f"drafter: {proof}")
            if proof.useless:
                raise give_up(f"answers, and its drafter is of no use: {proof}, where {LEAST_ACCEPT_LENGTH} is the "
                              "least", "likely the algorithm is not the head's (EAGLE with an EAGLE-3 head says "
                              "nothing), it is the head of another target, or it lacks its d2t table: kit.check "
                              "compares them")
        if ok:
            hear()          # what it said while it was asked: the last phases of a quick start
            on_line(f"started: {stages}")
            return time.monotonic() - began
        if time.monotonic() - began > within_s:
            raise give_up(f"was not healthy within {within_s:g} s: {why}"
                          + (f"; it had come to: {stages.last}" if stages.last else ""),
                          "read the log; if it is only slow, raise serve.healthy_within_s")
        time.sleep(pause)
        pause = min(pause * 1.5, 2.0)   # quick for a small model, gentle for one that loads ten minutes


def died(exp: Experiment, host: Host, result: str, exit_code: int | None, signal: str | None,
         said: list[str]) -> ServiceDied:
    """The error for a service that ended: how, its last lines, and the cause where a pattern knows it."""
    eng = engine(exp.engine.name)
    how = f"signal {signal}" if signal else f"exit {exit_code}" if exit_code is not None else result
    next = "change what the lines complain about, and serve again"
    if signal in ("KILL", "SIGKILL"):
        if eng.own_kill and any(re.search(eng.own_kill, line) for line in said):
            how = f"it ended itself with {signal} after one of its processes failed; not the kernel for want of memory"
        else:
            next = "nothing in its log says why: look for the kernel's memory killer, journalctl -k | grep -i oom"
    cause, line = explain(eng.failures, said) or (None, "")
    what, _, fix = cause.meaning.partition(" Fix: ") if cause else ("", "", "")
    return ServiceDied(f"{exp.unit} ended ({how}) before it was healthy" + (f": {what}" if what else ""),
                       where=f"{host.name}: {_tail([line, *said[-LAST_LINES:]] if line else said)}", next=fix or next)


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

    def see(self, time_s: float | None, line: str) -> None:
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
        return ", ".join(id if at is None else f"{id} {at - first:.0f} s" for id, at, _ in self.seen.values()) \
            or "no phase was seen in its log"


def phases(known: tuple[Phase, ...], said: list[tuple[float | None, str]]) -> list[tuple[str, float | None, str]]:
    """(phase, time_s, meaning) for each phase a start went through, first occurrence each, in log order."""
    stages = Stages(known)
    for time_s, line in said:
        stages.see(time_s, line)
    return list(stages.seen.values())


def _json(answer: Http) -> object:
    """The body of a 200, else {}."""
    try:
        return json.loads(answer.body) if answer.status == 200 else {}
    except ValueError:
        return {}


def _tail(said: list[str]) -> str:
    return " | ".join(line.strip()[:160] for line in dict.fromkeys(said[-LAST_LINES - 1:])) or "it wrote nothing"
