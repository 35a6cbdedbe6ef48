"""Following a unit on a host: lines that survive a lost connection, and jobs run to their end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from kit.errors import Cancelled, HostError, LinkLost, ParseError
from kit.seams import Host, LogLine, Supervisor, Unit, UnitState

RETRIES_S = (0.2, 0.5, 1, 2, 4, 8, 15, 30)   # waits between tries to get a lost connection back


def state(host: Host, sup: Supervisor, python: str, name: str) -> UnitState:
    """The state of one unit; `active` is "not-found" where there is none."""
    found = sup.parse_states(host.run(sup.states(host.root, python, (name,))).check(f"state of {name}"))
    return next((s for s in found if s.name == name), UnitState(name, "not-found"))


def lines(host: Host, sup: Supervisor, python: str, name: str, cursor: str = "",
          stop: Callable[[], bool] = lambda: False) -> Iterator[LogLine | None]:
    """Log lines after `cursor`, until the unit has ended or `stop()` says so; None in moments of silence.

    A lost connection is taken up again at the last line: no gap, no repeat.
    """
    tries = 0
    while True:
        try:
            with host.stream(sup.follow(name, host.root, python, cursor)) as chunks:
                for line in _split(chunks):
                    if line is not None:
                        parsed = sup.parse_line(line)
                        cursor, tries = parsed.cursor, 0
                        yield parsed
                    elif stop():
                        return
                    else:
                        yield None
            return
        except LinkLost:
            if tries == len(RETRIES_S):
                raise
            time.sleep(RETRIES_S[tries])
            tries += 1
            if stop():
                return


def recent(host: Host, sup: Supervisor, python: str, name: str, cursor: str = "") -> list[LogLine]:
    """The lines that are there now, after `cursor`."""
    printed = host.run(sup.follow(name, host.root, python, cursor, wait=False)).check(f"log of {name}").stdout
    return [sup.parse_line(line) for line in printed.split(b"\n") if line]


def _split(chunks: Iterator[bytes]) -> Iterator[bytes | None]:
    rest = b""
    for chunk in chunks:
        if not chunk:
            yield None
            continue
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (w for w in whole if w)
    if rest:
        raise ParseError(f"the log broke off in a line: {rest[:80]!r}", next="follow it again")


def start(host: Host, sup: Supervisor, python: str, unit: Unit) -> None:
    """Write the unit and start it; the supervisor's refusal becomes the matching KitError."""
    for path, content in sup.install(unit, host.root).items():
        host.write(path, content)
    sup.explain(host.run(sup.start(unit.name, host.root, python)), unit)


def stop(host: Host, sup: Supervisor, python: str, name: str, timeout_s: float) -> None:
    """Stop a unit's whole tree; done only when its port is closed."""
    command = sup.stop(name, host.root, python, timeout_s)
    sup.explain(host.run(command), Unit(name, ()))


def run_to_end(host: Host, sup: Supervisor, python: str, unit: Unit, on_line: Callable[[str], None],
               cancelled: Callable[[], bool]) -> UnitState:
    """Run a job unit under the supervisor and wait for its end; one that already runs is taken up.

    `on_line` gets each line of its output. Cancelling stops the job on the host.
    """
    there = state(host, sup, python, unit.name)
    if there.running and there.digest != unit.digest:
        stop(host, sup, python, unit.name, unit.stop_timeout_s)
        there = state(host, sup, python, unit.name)
    if not there.running:
        start(host, sup, python, unit)
    try:
        for line in lines(host, sup, python, unit.name, stop=cancelled):
            if cancelled():
                raise Cancelled(f"{unit.name} was cancelled", where=host.name, next="run it again when you like")
            if line is not None:
                on_line(line.text)
    except (Cancelled, KeyboardInterrupt):
        _quietly_stop(host, sup, python, unit)
        raise
    return state(host, sup, python, unit.name)


def _quietly_stop(host: Host, sup: Supervisor, python: str, unit: Unit) -> None:
    """The user cancelled: what matters is that, not that the host was gone too."""
    try:
        stop(host, sup, python, unit.name, unit.stop_timeout_s)
    except HostError:
        return
