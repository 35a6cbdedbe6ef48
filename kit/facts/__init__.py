"""Facts about a host: a few lines of shell each, and a parser for what they print. Pure.

All facts travel as one script, so a survey is one round trip. A fact's script
sees $root (the kit's folder), $python and $port; it must print something
parseable even where a tool is absent, and never change the host.
What hosts print: tests/facts/cases.yaml, tests/fixtures/topology.
"""

from __future__ import annotations

from typing import Any

from kit.errors import ParseError
from kit.facts import gpus, machine, owned, scope
from kit.facts.base import Fact
from kit.facts.gpus import BUSY_MIB, GPU_HOLDERS, Gpu, GpuHolder, GpuUse
from kit.facts.machine import Holder
from kit.facts.owned import LEASES, NOTES, Lease, Present

__all__ = ["BUSY_MIB", "FACTS", "GPU_HOLDERS", "LEASES", "NOTES", "Fact", "Gpu", "GpuHolder", "GpuUse", "Holder",
           "Lease", "Present", "parse", "script"]

FACTS: tuple[Fact, ...] = (*machine.FACTS, *gpus.FACTS, *scope.FACTS, *owned.FACTS)

_MARK = "\x1e"      # record separator: no fact prints it


def script() -> str:
    """All facts as one shell program; run as `sh -s -- ROOT PYTHON PORT STATES-ARGV…`.

    The rest of the arguments is the supervisor's own command for listing its
    units; it is only run once the host has units. Nothing may read the
    script's own stdin, hence </dev/null.
    """
    head = "root=$1 python=$2 port=$3; shift 3\n"
    body = "".join(f"printf '{_MARK}%s\\n' {f.name}\n( {f.script}\n) 2>/dev/null </dev/null\n"
                   for f in FACTS if not f.reads)
    units = f"printf '{_MARK}%s\\n' units\n[ $# -gt 0 ] && [ -d \"$root/units\" ] && \"$@\" </dev/null\n"
    return head + body + units + f"printf '{_MARK}%s\\n' end\n"


def parse(text: str, where: str = "") -> dict[str, Any]:
    """What the script printed → {fact: value}, plus "units" as raw text. `ParseError` names the fact."""
    blocks = dict(block.partition("\n")[::2] for block in text.split(_MARK)[1:])
    if "end" not in blocks:
        raise ParseError("the survey broke off", where=where, next="survey again; is the host's /bin/sh a POSIX shell?")
    out: dict[str, Any] = {"units": blocks.get("units", "")}
    for fact in FACTS:
        said = blocks.get(fact.reads or fact.name, "")
        try:
            out[fact.name] = fact.parse(said)
        except (ValueError, IndexError, KeyError) as e:
            raise ParseError(f"fact {fact.name} was not understood: {said[:200]!r} ({e})",
                             where=where, next="report it with this text") from None
    return out
