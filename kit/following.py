"""Following a unit on a host: lines that survive a lost connection, and jobs run to their end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from kit.errors import Cancelled, ConnectError, HostKeyError, KitError, LinkLost
from kit.seams import Host, LogLine, Supervisor, Unit, UnitState

RETRIES_S = (0.2, 0.5, 1, 2, 4, 8, 15, 30)   # waits between tries to get a lost connection back


def state(host: Host, sup: Supervisor, python: str, name: str) -> UnitState:
    """The state of one unit; `active` is "not-found" where there is none."""
    found = sup.parse_states(host.run(sup.states(host.root, python, (name,))))
    return next((s for s in found if s.name == name), UnitState(name, "not-found"))


def lines(host: Host, sup: Supervisor, python: str, name: str, cursor: str = "",
          check: Callable[[], None] = lambda: None, wait: bool = True) -> Iterator[LogLine]:
    """Log lines after `cursor`, until the unit has ended; without `wait` those that are there now.

    `check` is called at each line and in each moment of silence; what it raises
    (Cancelled) ends the following. A lost connection is taken up again at the
    last line: no gap, no repeat.
    """
    tries = 0
    while True:
        try:
            with host.stream(sup.follow(name, host.root, python, cursor, wait)) as chunks:
                for line in _split(chunks):
                    check()
                    if line:
                        parsed = sup.parse_line(line)
                        cursor, tries = parsed.cursor, 0
                        yield parsed
            return
        except (LinkLost, ConnectError) as e:       # ConnectError: not back yet; at the first try it is an answer
            refused = isinstance(e, HostKeyError) or isinstance(e, ConnectError) and not tries
            if refused or tries == len(RETRIES_S):
                raise
            _pause(RETRIES_S[tries], check)
            tries += 1


def _pause(seconds: float, check: Callable[[], None]) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        check()
        time.sleep(min(0.2, seconds))
    check()


def recent(host: Host, sup: Supervisor, python: str, name: str, cursor: str = "") -> list[LogLine]:
    """The lines that are there now, after `cursor`."""
    return list(lines(host, sup, python, name, cursor, wait=False))     # a stream: a log has no largest size


def _split(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Whole lines; b"" for a moment of silence."""
    rest = b""
    for chunk in chunks:
        if not chunk:
            yield b""
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (w for w in whole if w)
    if rest:    # framed lines end with a newline: this one was cut by a lost connection
        raise LinkLost("the log broke off in the middle of a line", next="follow it again")


def start(host: Host, sup: Supervisor, python: str, unit: Unit) -> None:
    """Write the unit and start it; the supervisor's refusal becomes the matching KitError."""
    for path, content in sup.install(unit, host.root, host.user).items():
        host.write(path, content)
    sup.explain(host.run(sup.start(unit.name, host.root, python)), unit)


def stop(host: Host, sup: Supervisor, python: str, name: str, timeout_s: float) -> None:
    """Stop a unit's whole tree; done only when its port is closed."""
    command = sup.stop(name, host.root, python, timeout_s)
    sup.explain(host.run(command), Unit(name, ()))


def run_to_end(host: Host, sup: Supervisor, python: str, unit: Unit, on_line: Callable[[str], None],
               check: Callable[[], None]) -> UnitState:
    """Run a job unit under the supervisor and wait for its end; one that already runs is taken up.

    `on_line` gets each line of its output; `check` raises to cancel, which stops
    the job on the host.
    """
    there = state(host, sup, python, unit.name)
    if there.running and there.digest != unit.digest:
        stop(host, sup, python, unit.name, unit.stop_timeout_s)
        there = state(host, sup, python, unit.name)
    if not there.running:
        start(host, sup, python, unit)
    return to_end(host, sup, python, unit, on_line, check)


def to_end(host: Host, sup: Supervisor, python: str, unit: Unit, on_line: Callable[[str], None],
           check: Callable[[], None]) -> UnitState:
    """Wait for the end of a job that runs, or has just ended."""
    try:
        for line in lines(host, sup, python, unit.name, check=check):
            on_line(line.text)
    except Cancelled:
        with suppress(KitError):    # the user cancelled: that is the news, not that the host was gone too
            stop(host, sup, python, unit.name, unit.stop_timeout_s)
        raise
    return state(host, sup, python, unit.name)
