"""A service that somebody else keeps: its state and its log are read, and nothing of it is changed. Pure.

`host.supervisor` says which: "foreign:system/x.service", "foreign:user/x.service", "foreign:pid/4242-98765" (with
its start, as pids come again) or "foreign:port/30000". kit/remote/foreign_unit.py, which does the looking, travels on
stdin: nothing is written on the host. Jobs of the kit's own beside such a service are kept by `for_jobs`'s supervisor.
"""

from __future__ import annotations

import re
from typing import Any, NoReturn

from kit import shipping
from kit.command import Command, Result
from kit.errors import PlanError, SpecError
from kit.masking import masked
from kit.seams import LogLine, Unit
from kit.spec import Experiment
from kit.supervisors import EXITS, Shipped, process

PROGRAM = "foreign_unit.py"
UNIT = re.compile(r"[A-Za-z0-9:_.@\\-]+\.service")
WHERE = re.compile(rf"(system|user)/{UNIT.pattern}|pid/\d+-\d+|port/\d+")


class Foreign(Shipped):
    """Implements `kit.seams.Supervisor`, as far as looking goes; the rest raises PlanError.

    >>> supervisor("foreign:system/x.service").states("/r", "python3", ("a",)).argv[-2:]
    ('system/x.service', 'a')
    """

    name = "foreign"
    shipped = ()
    cursor = r"s=[0-9a-f]+;[a-z0-9=;]+(~\d+)?|\d+\.\d+"     # the journal's, ~k: k lines of an entry told; inode.offset
    ours = False

    def __init__(self, where: str = ""):
        self.where = where

    def at(self, where: str) -> Foreign:
        """The same for one service; SpecError where it names none."""
        if not WHERE.fullmatch(where):
            raise SpecError(f"host.supervisor: foreign:{where} names no service", where="foreign", next="kit.adopt "
                            "writes it; one reads foreign:system/x.service, foreign:pid/4242-98765, foreign:port/30000")
        return Foreign(where)

    def _not_ours(self, what: str) -> NoReturn:
        kind, _, name = self.where.partition("/")
        tell = f"systemctl {'--user ' if kind == 'user' else ''}… {name}" if kind in ("system", "user") else "a signal"
        raise PlanError(f"{self.where.replace('/', ' ')} is not ours: the kit follows and measures it, and never "
                        f"{what} it", where=f"host.supervisor foreign:{self.where}",
                        next=f"its owner can ({tell}); for a service of your own: host.supervisor: systemd or process")

    def unfit(self, now: Any) -> tuple[str, str]:
        """The kit starts nothing of others', whether it is up or not."""
        return ("it is not ours: the kit follows and measures it, and never starts it",
                "kit.follow and kit.bench; for a service of your own: host.supervisor: systemd or process")

    def install(self, unit: Unit, root: str, user: str) -> dict[str, bytes]:
        self._not_ours("writes")

    def text(self, unit: Unit, root: str, user: str) -> str:
        """As one would type it: what the kit knows of the command."""
        return process.SUPERVISOR.text(unit, root, user)

    def start(self, name: str, root: str, python: str) -> Command:
        self._not_ours("starts")

    def stop(self, name: str, root: str, python: str, timeout_s: float) -> Command:
        self._not_ours("stops")

    def remove(self, name: str, root: str, python: str) -> Command:
        self._not_ours("removes")

    def states(self, root: str, python: str, names: tuple[str, ...] = ()) -> Command:
        """Of the service, under the name asked for; without names the kit's own jobs, as in a survey."""
        if not names:
            return process.SUPERVISOR.states(root, python)
        return self.program(python, "states", self.where, names[0])

    def follow(self, name: str, root: str, python: str, cursor: str = "", wait: bool = True) -> Command:
        """A system unit's journal needs root, or a group that few are in."""
        words = ("follow", self.where, "--cursor", cursor, *(() if wait else ("--no-wait",)))
        root_needed = self.where.startswith("system/")
        return self.program(python, *words, limit_s=None if wait else 60.0, as_root=root_needed)

    @staticmethod
    def program(python: str, *words: str, limit_s: float | None = 60.0, as_root: bool = False) -> Command:
        return Command((python, "-I", "-S", "-", *words), shipping.bundle(PROGRAM, "journal.py"), limit_s, as_root)

    def explain(self, result: Result, unit: Unit | None = None) -> Result:
        """Itself if the program succeeded, else what it refused."""
        if result.exit in (12, 21, 22):
            said = result.stderr.decode("utf-8", "replace").strip().splitlines() or ["said nothing"]
            raise PlanError(masked(said[-1].removeprefix("foreign_unit: ")), where=result.host,
                            next="look at it on the host: is it up, and may you see it?")
        return result.check("looking at a service that is not ours") if result.exit not in EXITS else \
            super().explain(result, unit)

    def parse_line(self, line: bytes) -> LogLine:
        """`<cursor> <time_s> <raw>`, secrets masked: SGLang logs its whole command."""
        plain = super().parse_line(line)
        return LogLine(plain.cursor, plain.time_s, masked(plain.text))


def for_jobs(exp: Experiment) -> Experiment:
    """The experiment whose supervisor keeps the kit's own jobs: itself, unless its service is not ours.

    >>> for_jobs(adopted.experiment).host.supervisor
    'process'
    """
    return exp.with_(**{"host.supervisor": "process"}) if exp.host.supervisor.startswith("foreign:") else exp


SUPERVISOR = Foreign()
