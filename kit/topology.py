"""How the GPUs of a host are wired: links, P2P, NUMA nodes, NICs, IOMMU. A value and its parsers; pure.

What follows from it is in kit/nccl.py. What hosts print: tests/fixtures/topology.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import combinations

ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# Columns and cells are told apart by their own shape: wide tables print them without a gap ("NIC10NIC11", "SYSNODE").
COLUMN = re.compile(r"GPU\d+|NIC\d+|mlx5_\d+|[A-Za-z]\w*")
LINK = re.compile(r"[ \t]*(NV\d{1,2}|PIX|PXB|PHB|NODE|SYS|X)")
P2P = re.compile(r"[ \t]*(OK|CNS|GNS|TNS|DR|NS|U|X)")
Pairs = Mapping[tuple[int, int], str]


@dataclass(frozen=True)
class Nic:
    """kind: infiniband | ethernet (the link layer). rdma: NCCL can use it without TCP."""
    name: str
    rdma: bool
    kind: str
    up: bool


@dataclass(frozen=True)
class Iommu:
    """What tells whether a GPU's access to another is sent through the IOMMU.

    words     of the kernel's command line that name IOMMU or ACS
    units     IOMMUs that the kernel drives; None where /sys does not say
    domains   {PCI address of a GPU: type of its IOMMU group}: DMA, DMA-FQ, identity, none, unsaid
    acs       (PCI bridges with access control on, all that have it); None where lspci is absent or needs root
    vm        a virtual machine: what lies below it cannot be seen
    """
    words: tuple[str, ...] = ()
    units: int | None = None
    domains: Mapping[str, str] = field(default_factory=dict)
    acs: tuple[int, int] | None = None
    vm: bool = False

    @property
    def translates(self) -> bool | None:
        """Accesses of the GPUs are translated; None where it cannot be told."""
        kinds = set(self.domains.values())
        if any(kind.startswith("DMA") for kind in kinds):
            return True
        if kinds and kinds <= {"identity", "none"}:
            return False
        return False if self.units == 0 else None


@dataclass(frozen=True)
class Topology:
    """links, p2p: {(GPU, GPU): as nvidia-smi says}, {} where it does not; numa: {GPU: node}; nics None: not readable.

    links   NV18 (18 NVLinks), then over PCIe from near to far: PIX PXB PHB NODE SYS
    p2p     OK, or why not: CNS GNS TNS NS DR U

    >>> kit.survey(exp, host).topology.between((0, 1))
    {(0, 1): 'NV18'}
    """
    links: Pairs = field(default_factory=dict)
    p2p: Pairs = field(default_factory=dict)
    numa: Mapping[int, int] = field(default_factory=dict)
    numa_nodes: int | None = None
    nics: tuple[Nic, ...] | None = None
    iommu: Iommu = Iommu()

    def between(self, gpus: Iterable[int], of: str = "links") -> dict[tuple[int, int], str]:
        """{pair: link} of all pairs among these GPUs; "" where it was not read. of="p2p": their P2P state."""
        pairs: Pairs = getattr(self, of)
        return {(a, b): pairs.get((a, b), "") for a, b in combinations(sorted(set(gpus)), 2)}

    def rows(self) -> list[tuple[str, str]]:
        """(fact, value) for a reader; only those that say something."""
        gpus = sorted({a for a, _ in self.links})
        rows = []
        if len(gpus) > 1:
            rows.append(("GPU links", counted(self.between(gpus).values())))
            no_p2p = [f"{a}-{b} {s}" for (a, b), s in self.between(gpus, "p2p").items() if s not in ("OK", "")]
            rows.append(("GPU P2P", ("not between " + ", ".join(no_p2p[:4]) + (" …" if no_p2p[4:] else ""))
                         if no_p2p else "all pairs" if self.p2p else "not readable"))
        if (self.numa_nodes or 1) > 1:
            where = {n: [g for g in gpus if self.numa.get(g) == n] for n in sorted(set(self.numa.values()))}
            rows.append(("NUMA", f"{self.numa_nodes} nodes" + "".join(
                f"; node {n}: GPU {', '.join(map(str, there))}" for n, there in where.items())))
        if rdma := [n.name for n in self.nics or () if n.rdma]:
            rows.append(("RDMA NICs", ", ".join(rdma)))
        if gpus and self.iommu.translates:
            rows.append(("IOMMU", "translates the accesses of GPUs"))
        return rows


def counted(links: Iterable[str]) -> str:
    """`PIX 4, NODE 8, SYS 16`: how many pairs have which link; from near to far."""
    counts = Counter(link or "unknown" for link in links)
    return ", ".join(f"{link} {n}" for link, n in sorted(counts.items(), key=lambda c: (distance(c[0]), c[0])))


# NCCL has no NODE: for it, both are "through the CPU, within one NUMA node".
NEAR_TO_FAR = ("X", "NV", "PIX", "PXB", "PHB", "NODE", "SYS")


def distance(link: str) -> int:
    """Rank of a link from near to far; unknown ones last."""
    kind = "NV" if link.startswith("NV") else link
    return NEAR_TO_FAR.index(kind) if kind in NEAR_TO_FAR else len(NEAR_TO_FAR)


def parse_links(text: str) -> tuple[dict[tuple[int, int], str], dict[int, int]]:
    """`nvidia-smi topo -m` → (links, {GPU: NUMA node}). What is no such table gives ({}, {})."""
    links, rests = _matrix(text, LINK)
    numa = {gpu: node for gpu, rest in rests.items() if (node := _numa(rest)) is not None}
    return links, numa


def parse_p2p(text: str) -> dict[tuple[int, int], str]:
    """`nvidia-smi topo -p2p r` → {(GPU, GPU): state}."""
    return _matrix(text, P2P)[0]


def _matrix(text: str, cell: re.Pattern[str]) -> tuple[dict[tuple[int, int], str], dict[int, str]]:
    """(cells between GPUs, {GPU: what follows its cells}). A row that breaks off gives nothing."""
    columns: list[str] = []
    pairs: dict[tuple[int, int], str] = {}
    rests: dict[int, str] = {}
    for line in ANSI.sub("", text).splitlines():
        if not columns:
            names = COLUMN.findall(line.split("CPU Affinity")[0])
            header = re.match(r"\s+GPU0", line) and not any(cell.fullmatch(name) for name in names)
            columns = names if header else []
        elif row := re.match(r"\s*GPU(\d+)(?=\s)", line):
            found, at = [], row.end()
            while len(found) < len(columns) and (match := cell.match(line, at)):
                found, at = [*found, match[1]], match.end()
            if len(found) == len(columns):
                rests[int(row[1])] = line[at:]
                pairs |= {(int(row[1]), int(c[3:])): f for c, f in zip(columns, found, strict=True)
                          if c.startswith("GPU") and f != "X"}
    return pairs, rests


def _numa(rest: str) -> int | None:
    """The NUMA affinity behind the CPU affinity; either may be empty, and a list of CPUs may hold spaces."""
    rest = re.sub(r",\s+", ",", rest)
    cells = [c.strip() for c in rest.split("\t")][1:] if "\t" in rest else rest.split()
    return int(cells[1]) if len(cells) > 1 and cells[1].isdigit() else None
