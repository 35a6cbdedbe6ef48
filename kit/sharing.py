"""Who else is on a host: units of ours that are in the way, notes of others, holders of a port. Pure."""

from __future__ import annotations

from kit.errors import PlanError
from kit.facts import Holder, Lease
from kit.seams import Unit, UnitState
from kit.surveys import Survey


def in_the_way(u: UnitState, unit: Unit, now: Survey) -> str:
    """Why another unit of ours must end before `unit` can start; "" where both can be."""
    if u.port is not None and u.port == unit.port:
        return f"it holds port {unit.port}"
    if now.gpus and u.kind == "service" and not _apart(u.about.get("devices"), unit.about.get("devices")):
        return "it holds the GPUs"
    return ""


def _apart(a: str | None, b: str | None) -> bool:
    """Two CUDA_VISIBLE_DEVICES without a common GPU."""
    return bool(a and b) and not set(a.split(",")) & set(b.split(","))


def not_taken(now: Survey) -> None:
    """Somebody else's note on the host: two experiments on the same GPUs measure each other."""
    taken = [lease for lease in now.leases if now.gpus and lease.boot_id == now.boot_id and _others(lease, now)]
    if taken:
        raise PlanError(f"the GPUs are in use by {taken[0].who}: {taken[0].experiment}, unit {taken[0].unit}",
                        where=f"{now.host}: {taken[0].path}", next="ask them to stop it; that file goes with it, and "
                        "may be removed where it was left behind, or where that is you, elsewhere")


def _others(lease: Lease, now: Survey) -> bool:
    """Somebody else's: of another folder; or, where all log in as one user, of another person whose unit still runs."""
    if lease.root != now.root:
        return True
    there = now.unit(lease.unit)
    return bool(now.me and not lease.who.startswith(f"{now.me} as ") and there and there.running)


def who(holder: Holder) -> str:
    return f"pid {holder.pid} ({holder.command[:120]})" if holder.pid else "a process of another user"
