"""What the rules look at: the wiring among the GPUs of one server, its environment and its flags."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from kit.facts import Gpu
from kit.findings import Finding
from kit.topology import Topology

# How far apart GPUs may be for NCCL to let them talk directly, as the farthest link of `topo -m` that it admits.
LEVELS = {"LOC": "X", "NVL": "NV", "PIX": "PIX", "PXB": "PXB", "PHB": "NODE", "SYS": "SYS"}
OLD_LEVELS = ("LOC", "PIX", "PXB", "PHB", "SYS", "SYS")         # by number; larger ones mean the last


@dataclass(frozen=True)
class Case:
    """What the rules look at; the arguments of `advice`."""

    topology: Topology
    gpus: tuple[Gpu, ...]
    env: Mapping[str, str]
    tp: int
    args: tuple[str, ...]
    claim: str

    @property
    def here(self) -> int:
        """GPUs of this host that share the model."""
        return -(-self.tp // max(1, self.nodes))

    @cached_property
    def ranks(self) -> tuple[int, ...] | None:
        """Which: the first ones that the server sees; None where they are named by UUID or are too few."""
        seen = sorted({g.index for g in self.gpus} or {a for a, _ in self.topology.links})
        if said := self.env.get("CUDA_VISIBLE_DEVICES"):
            words = [w.strip() for w in said.split(",")]
            known = all(w.isdecimal() for w in words)
            seen = [int(w) for w in words if int(w) in seen] if known else []
        return tuple(seen[:self.here]) if len(seen) >= self.here else None

    @property
    def links(self) -> dict[tuple[int, int], str]:
        return self.topology.between(self.ranks or ())

    @property
    def known(self) -> bool:
        return bool(self.links) and all(self.links.values())

    @property
    def nvlinked(self) -> bool:
        """NVLink between all ranks."""
        return self.known and all(link.startswith("NV") for link in self.links.values())

    @property
    def p2p(self) -> dict[tuple[int, int], str]:
        return self.topology.between(self.ranks or (), "p2p")

    @property
    def p2p_ok(self) -> bool | None:
        states = set(self.p2p.values())
        return False if states - {"OK", "U", ""} else True if states == {"OK"} else None

    @property
    def p2p_off(self) -> bool:
        return self.env.get("NCCL_P2P_DISABLE") == "1" or self.level == "LOC"

    @property
    def level(self) -> str | None:
        """NCCL_P2P_LEVEL by its name; "" where NCCL would not know it, None where it is not set."""
        said = self.env.get("NCCL_P2P_LEVEL")
        if said is None or said in LEVELS:
            return said
        return OLD_LEVELS[min(int(said), len(OLD_LEVELS) - 1)] if said.isdecimal() else ""

    @property
    def nodes(self) -> int:
        """Hosts that share the model."""
        at = [i for i, word in enumerate(self.args) if word.partition("=")[0] == "--nnodes"]
        said = (self.args[at[-1]].partition("=")[2] or "".join(self.args[at[-1] + 1:at[-1] + 2])) if at else "1"
        return int(said) if said.isdecimal() else 1

    @property
    def names(self) -> str:
        return ", ".join(sorted({g.name for g in self.gpus if g.index in (self.ranks or ())}))


Rule = Callable[[Case], Iterator[Finding]]
