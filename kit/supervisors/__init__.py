"""Who keeps long things alive on the host. One file each, with a module-level `SUPERVISOR`.

Each has a program of kit/remote on the host that knows the same verbs, exit
codes and JSON: what they share is in `Shipped`.
"""

from __future__ import annotations

import json
import re
from dataclasses import fields
from typing import Any

from kit.command import Command, Result
from kit.errors import KitError, NoSpace, ParseError, PlanError, PortBusy, ServiceDied, ServiceError
from kit.registry import lookup
from kit.seams import LogLine, Supervisor, Unit, UnitState

# What the programs' exit codes mean, and what to do then. 0 and every other code: see Result.check.
EXITS: dict[int, tuple[type[KitError], str]] = {
    10: (PlanError, "stop it, then try again"),
    11: (PortBusy, "stop that process, or choose another serve.port"),
    12: (PlanError, "look at the units there are: states"),
    13: (PlanError, "start it again: that writes the file anew (stop it first if it still runs)"),
    14: (PortBusy, "stop that process on the host, then stop the unit again"),
    15: (ServiceDied, "mend the program or the folder it names, then start again"),
    16: (NoSpace, "free some space on the host, then try again"),
    17: (ServiceError, "state D waits inside a driver: look at dmesg on the host; often only a reboot ends it"),
    18: (PlanError, "check who owns the kit's folder on the host, and its modes"),
    19: (PlanError, "choose another experiment name, or remove that file yourself"),
    20: (PlanError, "mend what systemd-analyze names in the config: engine.args, engine.env, engine.launch, serve"),
    21: (PlanError, "look at it on the host: systemctl status; another supervisor: host.supervisor: process"),
}
FIELDS = {f.name for f in fields(UnitState)}


def supervisor(name: str) -> Supervisor:
    """The supervisor of that name; `SpecError` names the known ones. "foreign:…" says whose service it looks at."""
    kind, _, where = name.partition(":")
    found = lookup(__name__, kind if kind == "foreign" else name, "SUPERVISOR")
    return found.at(where) if kind == "foreign" else found


class Shipped:
    """Commands of a supervisor's program on the host, and what they answer."""

    name: str
    shipped: tuple[str, ...]
    cursor: str                         # pattern of what resumes a log
    options: tuple[str, ...] = ()
    ours = True             # the kit may start and stop what it keeps

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

    def _command(self, python: str, root: str, verb: str, *words: str, limit_s: float | None = 60.0) -> Command:
        # -I -S: neither the user's PYTHON* variables nor site-packages can change what the helper does.
        return Command((python, "-I", "-S", f"{root}/bin/{self.shipped[0]}", verb, *words, "--root", root,
                        *self.options), limit_s=limit_s)

    # -- parsers

    def explain(self, result: Result, unit: Unit | None = None) -> Result:
        """Itself if the program succeeded, else the fitting error: PortBusy, ServiceDied, NoSpace, PlanError…

        The program names unit and port itself, so `unit` only tells which command failed otherwise.
        """
        program = self.shipped[0].removesuffix(".py")
        if self._absent(result):
            raise PlanError("nothing was ever started there by the kit", where=result.host, next="serve first: "
                            "kit.plan and kit.apply, or notebook 30")
        if result.exit in EXITS:
            error, next = EXITS[result.exit]
            said = result.stderr.decode("utf-8", "replace").strip().splitlines() or ["said nothing"]
            raise error(said[-1].removeprefix(f"{program}: "), where=result.host, next=next)
        return result.check(f"{program} {unit.name}" if unit else program)

    def _absent(self, result: Result) -> bool:
        """Python's own words when the program was never shipped there."""
        return result.exit == 2 and b"can't open file" in result.stderr and self.shipped[0].encode() in result.stderr

    def parse_states(self, result: Result) -> tuple[UnitState, ...]:
        """Of `states`, `start` and `stop`. What no field has is in about["_…"]: who stopped it, what went wrong."""
        if self._absent(result):
            return ()
        self.explain(result)
        try:
            entries = json.loads(result.stdout)
            return tuple(self._state(e) for e in entries)
        except (ValueError, TypeError, KeyError, AttributeError) as e:
            raise ParseError(f"the supervisor's answer is not a list of states: {result.stdout[:80]!r} ({e})",
                             where=result.host, next="look for a login message on stdout; else install the kit's "
                             "helpers on the host again") from None

    @staticmethod
    def _state(entry: dict[str, Any]) -> UnitState:
        known = {k: v for k, v in entry.items() if k in FIELDS}
        if not all(isinstance(known[k], str) for k in ("name", "active", "sub", "result")):
            raise TypeError("a state lacks its words")
        more = {f"_{k}": entry[k] for k in ("stopped_by", "error", "text", "restarts", "dropins") if entry.get(k)}
        return UnitState(**{**known, "about": {**known.get("about", {}), **more}})

    def parse_line(self, line: bytes) -> LogLine:
        """`<cursor> <time_s> <raw>`; bytes that are not UTF-8 stay readable as \\xNN."""
        try:
            cursor, when, raw = line.split(b" ", 2)
            if not re.fullmatch(self.cursor, cursor.decode("ascii")):
                raise ValueError("no cursor")
            return LogLine(cursor.decode("ascii"), float(when), raw.decode("utf-8", "backslashreplace"))
        except ValueError as e:
            raise ParseError(f"not a framed log line: {line[:80]!r} ({e})", where=f"{self.shipped[0]} follow",
                             next="look for a login message on stdout; else install the kit's helpers again") from None
