"""Who keeps long things alive on the host. One file each, with a module-level `SUPERVISOR`."""

from __future__ import annotations

from kit.registry import lookup
from kit.seams import Supervisor


def supervisor(name: str) -> Supervisor:
    """The supervisor of that name; `SpecError` names the known ones."""
    return lookup(__name__, name, "SUPERVISOR")
