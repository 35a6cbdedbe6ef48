"""Units as plain processes, kept by `babysit.py` on the host: no root, no systemd. Pure.

What travels in `shipped` must be in `{root}/bin/` before anything else here is run.
A command of this file that ended badly is told by `explain`, which knows the
babysitter's exit codes; `parse_states` asks it first.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from kit.seams import Unit
from kit.supervisors import Shipped
from kit.words import command_text


class ProcessSupervisor(Shipped):
    """Implements `kit.seams.Supervisor`.

    >>> SUPERVISOR.start("demo", "/home/u/.specbook", "python3").argv[4:]
    ('start', 'demo', '--root', '/home/u/.specbook')
    """

    name = "process"
    shipped = ("babysit.py",)
    cursor = r".+\.\d+"                  # <start id>.<offset>

    def unfit(self, now: Any) -> tuple[str, str] | None:
        """Every Linux host with Python will do."""
        return None

    def install(self, unit: Unit, root: str, user: str) -> dict[str, bytes]:
        """unit.json alone. The same unit gives the same bytes."""
        content = {**asdict(unit), "digest": unit.digest}
        return {f"{root}/units/{unit.name}/unit.json": json.dumps(content, indent=1, sort_keys=True).encode()}

    def text(self, unit: Unit, root: str, user: str) -> str:
        """As one would type it."""
        return command_text(unit.argv, unit.env) + "\n"


SUPERVISOR = ProcessSupervisor()
