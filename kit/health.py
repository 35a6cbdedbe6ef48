"""Healthy means: a real generation was answered, and where a drafter serves, it is of use. Else: not ready, or dead."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from kit.command import sh
from kit.engines import engine
from kit.errors import CommandTimeout, ConnectError, HostKeyError, LinkLost, NotHealthy, ServiceDied
from kit.following import recent, state, stop
from kit.seams import LEAST_ACCEPT_LENGTH, Acceptance, Host, Http
from kit.spec import Experiment
from kit.stages import Stages, explain
from kit.supervisors import supervisor

PROBE = "Say hello."
PROBE_TOKENS = 8
PROBE_S = 30.0
LAST_LINES = 6
WITHOUT_DRAFTER = ("none", "ngram", "suffix")   # what an n-gram finds depends on the text: nothing to hold it to
STOPPED = "it was stopped, its log is kept"
LEFT = "it ran before and was left running: stop it by a plan for 'stopped'"
JUDGED_TOKENS = 300             # from so many on, the mean itself is judged
PROOF_PROMPTS = (
    "Explain in a few paragraphs how a bicycle stays upright while it is moving.",
    "def quicksort(items):\n    \"\"\"Return a sorted copy of items.\"\"\"\n",
    "The following is a list of the months of the year and what a gardener does in each of them.\n1. January:",
    "Q: Why is the sky blue?\nA:",
)
BOOT = 'cat /proc/sys/kernel/random/boot_id; [ ! -d /run/systemd/system ] || systemctl is-system-running'

Verdict = Literal["healthy", "not yet", "useless"]


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
            return self.tokens >= JUDGED_TOKENS         # so many, and nothing tells of one verify step
        accepted = (self.length - 1) * self.steps
        most = accepted if self.tokens >= JUDGED_TOKENS else accepted + 2 * accepted ** 0.5 + 3
        return most / self.steps < LEAST_ACCEPT_LENGTH - 1

    def __str__(self) -> str:
        told = f"accept length {self.length:.2f}" if self.length is not None else "nothing tells of a verify step"
        return f"{told} over {self.tokens} tokens in {self.took_s:.1f} s" + (f", from {self.source}" if self.source else
                                                                            "")


def probe(exp: Experiment, host: Host, timeout_s: float = PROBE_S) -> tuple[bool, str]:
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


def judge(exp: Experiment, host: Host) -> tuple[Verdict, str]:
    """What a service is now, and what showed it: it must answer, and its drafter, if it has one, must be of use.

    >>> judge(exp, host)
    ('healthy', 'drafter: accept length 2.90 over 320 tokens in 1.2 s, from its answers')
    """
    ok, why = probe(exp, host, min(PROBE_S, exp.serve.healthy_within_s))
    if not ok:
        return "not yet", why
    try:
        proof = prove(exp, host)
    except CommandTimeout as e:
        return "not yet", e.what
    if isinstance(proof, str):                  # it answers, and not for long: the next look says whether it died
        return "not yet", proof
    if proof is None:
        return "healthy", why
    return "useless" if proof.useless else "healthy", f"drafter: {proof}"


def of_no_use(exp: Experiment, host: Host, said: str, where: str = "", then: str = LEFT) -> NotHealthy:
    """The error for a drafter that speculates in vain. `said` is judge's."""
    return NotHealthy(f"{exp.unit} answers, and its drafter is of no use: {said.removeprefix('drafter: ')}, where "
                      f"{LEAST_ACCEPT_LENGTH} is the least; {then}", where=where or host.name,
                      next="likely the algorithm is not the head's (EAGLE with an EAGLE-3 head says nothing), it is "
                           "the head of another target, or it lacks its d2t table: kit.check compares them")


def wait_healthy(exp: Experiment, host: Host, within_s: float, on_line: Callable[[str], None],
                 check: Callable[[], None], ours: bool = True) -> float:
    """Seconds from the unit's start until it is healthy.

    ours   it was just started for this: what does not get healthy is stopped, its log stays

    A lost connection is waited for until the deadline. Raises ServiceDied at once when the process ended (with its
    last lines and, where the log says it, the cause), when systemd starts it over, or when the host was rebooted;
    NotHealthy at the deadline, or when the drafter is of no use.
    """
    sup, python, unit = supervisor(exp.host.supervisor), exp.host.python, exp.unit
    began, cursor, pause, restarts, boot = time.monotonic(), "", 0.1, None, _boot(host)
    said: list[str] = []
    stages = Stages(engine(exp.engine.name).phases)

    def end() -> str:
        if ours:
            stop(host, sup, python, unit, exp.serve.stop_within_s)
        return STOPPED if ours else LEFT

    def hear() -> None:
        nonlocal cursor, said
        new = recent(host, sup, python, unit, cursor)
        cursor = new[-1].cursor if new else cursor
        said = (said + [line.text for line in new])[-200:]
        for line in new:
            stages.see(line.time_s, line.text)
            on_line(line.text)

    def look() -> tuple[Verdict, str]:
        nonlocal restarts
        now = state(host, sup, python, unit)    # before the log: what it said last is then in it
        hear()
        count = now.about.get("_restarts", 0)
        restarts = count if restarts is None else restarts
        over = now.sub == "auto-restart" or count > restarts
        if now.running and not over:
            return judge(exp, host)
        if over:
            end()
        raise rebooted(exp, host, boot) or \
            died(exp, host, now.result or now.active, now.exit_code, now.signal, said)

    while True:
        check()
        try:
            verdict, why = look()
        except HostKeyError:
            raise
        except (LinkLost, ConnectError, CommandTimeout) as e:      # a host that reads 600 GB is slow to answer
            verdict, why = "not yet", e.what
            on_line(f"{e.what}; asking again")
        if verdict == "useless" or why.startswith("drafter: "):
            on_line(why)
        if verdict == "useless":
            raise of_no_use(exp, host, why, f"{host.name}: {_tail(said)}", end())
        if verdict == "healthy":
            hear()          # what it said while it was asked: the last phases of a quick start
            on_line(f"started: {stages}")
            return time.monotonic() - began
        if time.monotonic() - began > within_s:
            to = f"; it had come to: {stages.last}" if stages.last else ""
            raise NotHealthy(f"{unit} was not healthy within {within_s:g} s: {why}{to}; {end()}",
                             where=f"{host.name}: {_tail(said)}",
                             next="read the log; if it is only slow, raise serve.healthy_within_s")
        time.sleep(pause)
        pause = min(pause * 1.5, 2.0)   # quick for a small model, gentle for one that loads ten minutes


def _boot(host: Host) -> list[str]:
    """[boot id, what systemd says]; [] where the host did not answer."""
    try:
        return host.run(sh(BOOT, limit_s=20)).text.split()
    except (LinkLost, ConnectError, CommandTimeout):
        return []


def rebooted(exp: Experiment, host: Host, before: list[str]) -> ServiceDied | None:
    """The error where the host is not in the boot of `before` any more, or is leaving it."""
    now = _boot(host)
    new = bool(before and now) and now[0] != before[0]
    if not new and now[1:] != ["stopping"]:
        return None
    return ServiceDied(f"{exp.unit} ended before it was healthy: the host {'was rebooted' if new else 'is going down'}",
                       where=host.name, next="plan and apply again; with serve.at_boot it starts with the host")


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


def _json(answer: Http) -> object:
    """The body of a 200, else {}."""
    try:
        return json.loads(answer.body) if answer.status == 200 else {}
    except ValueError:
        return {}


def _tail(said: list[str]) -> str:
    return " | ".join(line.strip()[:160] for line in dict.fromkeys(said[-LAST_LINES - 1:])) or "it wrote nothing"
