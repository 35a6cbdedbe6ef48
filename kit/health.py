"""Healthy means: a real generation was answered. Everything before that is not ready."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable

from kit.engines import engine
from kit.errors import NotHealthy, ServiceDied
from kit.following import recent, state, stop
from kit.seams import Host, Phase
from kit.spec import Experiment
from kit.supervisors import supervisor

PROBE = "Say hello."
PROBE_TOKENS = 8
LAST_LINES = 6
JUDGED_TOKENS, LEAST_ACCEPT_LENGTH = 300, 1.2
TEXTS = ("def read_lines(path):\n", "The history of the city begins with", "1, 2, 3, 4, 5, 6,")


def probe(exp: Experiment, host: Host, timeout_s: float = 30.0) -> tuple[bool, str]:
    """(healthy, why not): one readiness request, then one real generation."""
    eng = engine(exp.engine.name)
    ready = host.http(exp.serve.port, eng.ready_path(), timeout_s=timeout_s)
    if ready.status == 0:
        return False, "nobody listens yet"
    if ready.status != 200:
        return False, f"{eng.ready_path()} answers {ready.status}: loading"
    path, body = eng.generation(PROBE, PROBE_TOKENS, stream=False)
    answer = host.http(exp.serve.port, path, json.dumps(body).encode(), timeout_s)
    try:
        tokens = eng.generated(json.loads(answer.body)) if answer.status == 200 else 0
    except ValueError:
        tokens = 0
    if tokens < 1:
        return False, f"a generation answered {answer.status} with {tokens} tokens: {answer.body[:120]!r}"
    return True, f"answered {tokens} tokens"


def wait_healthy(exp: Experiment, host: Host, within_s: float, on_line: Callable[[str], None],
                 check: Callable[[], None]) -> float:
    """Seconds from the unit's start until it is healthy.

    Raises ServiceDied at once when the process ended (with its last lines and,
    where the log says it, the cause), NotHealthy at the deadline; what does not
    get healthy is stopped, its log stays.
    """
    sup, python, unit = supervisor(exp.host.supervisor), exp.host.python, exp.unit
    began, cursor, why, pause = time.monotonic(), "", "not asked yet", 0.1
    said: list[str] = []
    while True:
        check()
        now = state(host, sup, python, unit)    # before the log: what it said last is then in it
        new = recent(host, sup, python, unit, cursor)
        cursor = new[-1].cursor if new else cursor
        said = (said + [line.text for line in new])[-200:]
        for line in new:
            on_line(line.text)
        if not now.running:
            raise died(exp, host, now.result or now.active, now.exit_code, now.signal, said)
        ok, why = probe(exp, host)
        if ok:
            took = time.monotonic() - began
            _drafts_are_taken(exp, host, on_line)
            return took
        if time.monotonic() - began > within_s:
            stop(host, sup, python, unit, exp.serve.stop_within_s)
            raise NotHealthy(f"{unit} was not healthy within {within_s:g} s: {why}; it was stopped, its log is kept",
                             where=f"{host.name}: {_tail(said)}",
                             next="read the log; if it is only slow, raise serve.healthy_within_s")
        time.sleep(pause)
        pause = min(pause * 1.5, 2.0)   # quick for a small model, gentle for one that loads ten minutes


def _drafts_are_taken(exp: Experiment, host: Host, on_line: Callable[[str], None]) -> None:
    """A drafter that does not fit *runs*, at accept length 1.00. NotHealthy below 1.2 over 300 tokens; it is stopped.

    Source of the bound: heads that fit give 1.9 and more on any text; wrong heads and wrong algorithms 1.0 to 1.1.
    """
    eng, asked = engine(exp.engine.name), -(-JUDGED_TOKENS // len(TEXTS))
    if exp.spec.algorithm in ("none", "ngram", "suffix") or eng.verifying("", 1) is None:
        return
    tokens = steps = 0
    for text in TEXTS:
        path, body = eng.verifying(text, min(asked + 1, exp.serve.context - 64))
        answer = host.http(exp.serve.port, path, json.dumps(body).encode(), 120.0)
        try:
            counted = eng.verified(json.loads(answer.body)) if answer.status == 200 else None
        except ValueError:
            counted = None
        if counted is None:
            on_line(f"accept length not judged: {path} answered {answer.status} without verify steps")
            return
        tokens, steps = tokens + counted[0], steps + counted[1]
    length = tokens / steps
    on_line(f"accept length {length:.2f} over {tokens} tokens")
    if length < LEAST_ACCEPT_LENGTH:
        sup = supervisor(exp.host.supervisor)
        stop(host, sup, exp.host.python, exp.unit, exp.serve.stop_within_s)
        raise NotHealthy(f"{exp.unit} runs, and its drafts are not taken: accept length {length:.2f} over {tokens} "
                         "tokens (below 1.2); it was stopped", where=host.name,
                         next="the algorithm is not this head's, or the head is another target's: kit.check(exp, host)")


def died(exp: Experiment, host: Host, result: str, exit_code: int | None, signal: str | None,
         said: list[str]) -> ServiceDied:
    """The error for a service that ended: how, its last lines, and the cause where a pattern knows it."""
    how = f"signal {signal}" if signal else f"exit {exit_code}" if exit_code is not None else result
    cause, line = explain(engine(exp.engine.name).failures, said) or (None, "")
    what, _, fix = cause.meaning.partition(" Fix: ") if cause else ("", "", "")
    return ServiceDied(f"{exp.unit} ended ({how}) before it was healthy" + (f": {what}" if what else ""),
                       where=f"{host.name}: {_tail([line, *said[-LAST_LINES:]] if line else said)}",
                       next=fix or "change what the lines complain about, and serve again")


def explain(failures: tuple[Phase, ...], said: list[str]) -> tuple[Phase, str] | None:
    """The first known failure, in the order of the table, and the line that shows it."""
    return next(((f, line) for f in failures for line in said if re.search(f.pattern, line)), None)


def phases(known: tuple[Phase, ...], said: list[tuple[float | None, str]]) -> list[tuple[str, float | None, str]]:
    """(phase, time_s, meaning) for each phase a start went through, first occurrence each, in log order."""
    seen: dict[str, tuple[str, float | None, str]] = {}
    for time_s, line in said:
        for phase in known:
            if phase.id not in seen and re.search(phase.pattern, line):
                seen[phase.id] = (phase.id, time_s, phase.meaning)
    return list(seen.values())


def _tail(said: list[str]) -> str:
    return " | ".join(line.strip()[:160] for line in dict.fromkeys(said[-LAST_LINES - 1:])) or "it wrote nothing"
