"""Units as plain processes, kept by `babysit.py` on the host: no root, no systemd. Pure.

What travels in `shipped` must be in `{root}/bin/` before anything else here is run.
A command of this file that ended badly is told by `explain`, which knows the
babysitter's exit codes; `parse_states` asks it first.
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import Any

from kit.command import Command, Result
from kit.errors import KitError, NoSpace, ParseError, PlanError, PortBusy, ServiceDied, ServiceError
from kit.seams import LogLine, Unit, UnitState

# What babysit.py's exit codes mean, and what to do then. 0 and every other code: see Result.check.
EXITS: dict[int, tuple[type[KitError], str]] = {
    10: (PlanError, "stop it, then try again"),
    11: (PortBusy, "stop that process, or choose another serve.port"),
    12: (PlanError, "look at the units there are: states"),
    13: (PlanError, "start it again: that writes the file anew (stop it first if it still runs)"),
    14: (PortBusy, "stop that process on the host, then stop the unit again"),
    15: (ServiceDied, "mend the program or the folder it names, then start again"),
    16: (NoSpace, "make room on the host, then try again"),
    17: (ServiceError, "state D waits inside a driver: look at dmesg on the host; often only a reboot ends it"),
    18: (PlanError, "check who owns the kit's folder on the host, and its modes"),
}
FIELDS = {f.name for f in fields(UnitState)}


class ProcessSupervisor:
    """Implements `kit.seams.Supervisor`.

    >>> SUPERVISOR.start("demo", "/home/u/.specbook", "python3").argv[4:]
    ('start', 'demo', '--root', '/home/u/.specbook')
    """

    name = "process"
    shipped = ("babysit.py",)

    def install(self, unit: Unit, root: str) -> dict[str, bytes]:
        """unit.json alone. The same unit gives the same bytes."""
        content = {**asdict(unit), "digest": unit.digest}
        return {f"{root}/units/{unit.name}/unit.json": json.dumps(content, indent=1, sort_keys=True).encode()}

    def start(self, name: str, root: str, python: str) -> Command:
        """Does nothing when the same unit (by digest) already runs; prints its state like `states`."""
        return self._command(python, root, "start", name, limit_s=180)      # it may have to end an older one first

    def stop(self, name: str, root: str, python: str, timeout_s: float) -> Command:
        return self._command(python, root, "stop", name, "--timeout", f"{timeout_s:g}", limit_s=timeout_s + 30)

    def remove(self, name: str, root: str, python: str) -> Command:
        """Refused while it runs; nothing to do when there is no such unit."""
        return self._command(python, root, "remove", name)

    def states(self, root: str, python: str, names: tuple[str, ...] = ()) -> Command:
        return self._command(python, root, "states", *names)

    def follow(self, name: str, root: str, python: str, cursor: str = "", wait: bool = True) -> Command:
        words = ("follow", name, "--cursor", cursor)
        return self._command(python, root, *words, limit_s=None) if wait else \
            self._command(python, root, *words, "--no-wait")

    @staticmethod
    def _command(python: str, root: str, verb: str, *words: str, limit_s: float | None = 60.0) -> Command:
        # -I -S: neither the user's PYTHON* variables nor site-packages can change what the helper does.
        return Command((python, "-I", "-S", f"{root}/bin/babysit.py", verb, *words, "--root", root), limit_s=limit_s)

    # -- parsers

    def explain(self, result: Result, unit: Unit | None = None) -> Result:
        """Itself if the babysitter succeeded, else the fitting error: PortBusy, ServiceDied, NoSpace, PlanError…

        The babysitter names unit and port itself, so `unit` only tells which command failed otherwise.
        """
        if result.exit in EXITS:
            error, next = EXITS[result.exit]
            said = result.stderr.decode("utf-8", "replace").strip().splitlines() or ["said nothing"]
            raise error(said[-1].removeprefix("babysit: "), where=result.host, next=next)
        return result.check(f"babysit {unit.name}" if unit else "babysit")

    def parse_states(self, result: Result) -> tuple[UnitState, ...]:
        """Of `states`, `start` and `stop`. Who stopped it, and what went wrong: about["_stopped_by"], ["_error"]."""
        self.explain(result)
        try:
            entries = json.loads(result.stdout)
            return tuple(self._state(e) for e in entries)
        except (ValueError, TypeError, KeyError, AttributeError) as e:
            raise ParseError(f"the babysitter's answer is not a list of states: {result.stdout[:80]!r} ({e})",
                             where=result.host, next="look for a login message on stdout; else install the kit's "
                             "helpers on the host again") from None

    @staticmethod
    def _state(entry: dict[str, Any]) -> UnitState:
        known = {k: v for k, v in entry.items() if k in FIELDS}
        if not all(isinstance(known[k], str) for k in ("name", "active", "sub", "result")):
            raise TypeError("a state lacks its words")
        more = {f"_{k}": entry[k] for k in ("stopped_by", "error") if entry.get(k)}
        return UnitState(**{**known, "about": {**known.get("about", {}), **more}})

    def parse_line(self, line: bytes) -> LogLine:
        """`<cursor> <time_s> <raw>`; bytes that are not UTF-8 stay readable as \\xNN."""
        try:
            cursor, when, raw = line.split(b" ", 2)
            start_id, _, offset = cursor.decode("ascii").rpartition(".")
            if not (start_id and offset.isdigit()):
                raise ValueError("no cursor")
            return LogLine(cursor.decode("ascii"), float(when), raw.decode("utf-8", "backslashreplace"))
        except ValueError as e:
            raise ParseError(f"not a framed log line: {line[:80]!r} ({e})", where="babysit follow",
                             next="look for a login message on stdout; else install the kit's helpers again") from None


SUPERVISOR = ProcessSupervisor()
