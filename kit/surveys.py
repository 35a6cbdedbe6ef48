"""What a host looks like right now, as a frozen value. Pure: one command out, one parser in."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass, field

from kit import facts
from kit.command import Command, Result, sh
from kit.facts import Gpu, GpuUse, Holder, Lease, Present
from kit.seams import UnitState
from kit.spec import Experiment
from kit.supervisors import supervisor
from kit.topology import Topology

LIMIT_S = 120.0         # nvidia-smi alone takes seconds where the driver's persistence mode is off
PRIVILEGE = {"root": "as root", "sudo": "with sudo", "sudo-password": "with sudo, which asks for a password",
             "none": "not allowed: neither root nor sudo"}


@dataclass(frozen=True)
class Survey:
    """Facts about one host, for one experiment (its port, its folder), at one moment.

    gpu_use      MiB in use per GPU, and by whom
    gpu_trouble  what nvidia-smi said when it is there and lists no GPU
    privilege    root | sudo | sudo-password | none. sudo-password: sudo asks, and may refuse even then
    linger, user_manager   systemd keeps this user's services after logout; its user instance answers
    pid1, container, docker   name of process 1; docker | podman | … when inside one; "" | there | usable
    leases       notes of all who use the GPUs (`boot_id` tells whether they are of this boot)
    unit_files   {supervisor/name: folder of the kit that it belongs to, "" where it is nobody's}
    expected_s   what earlier launches took here, where somebody filled it in
    me           who a note on the host would say we are, where somebody filled it in
    changed      {slug: why} of models whose source has another version now, where somebody looked

    >>> kit.survey(exp, host).gpus
    ()
    """

    host: str
    root: str
    hostname: str
    user: str
    os: str
    boot_id: str
    clock_s: int
    python: tuple[int, ...] | None
    cpu: tuple[int, str]
    load: float
    mem_free_mib: int
    disk_free_mib: int | None
    gpus: tuple[Gpu, ...]
    systemd: bool
    port: int
    port_holder: Holder | None
    shipped: Mapping[str, str] = field(repr=False)
    engines: Mapping[str, dict] = field(repr=False)
    models: Mapping[str, Present] = field(repr=False)
    units: tuple[UnitState, ...] = ()
    gpu_trouble: str = ""
    gpu_use: GpuUse = GpuUse()
    topology: Topology = Topology()
    systemd_version: int | None = None
    systemd_state: str = ""
    privilege: str = "none"
    linger: bool = False
    user_manager: bool = False
    journal_readable: bool = False
    pid1: str = ""
    container: str = ""
    docker: str = ""
    leases: tuple[Lease, ...] = ()
    unit_files: Mapping[str, str] = field(default_factory=dict, repr=False)
    expected_s: float | None = None
    me: str = ""
    changed: Mapping[str, str] = field(default_factory=dict, repr=False)

    def unit(self, name: str) -> UnitState | None:
        return next((u for u in self.units if u.name == name), None)

    def rows(self) -> list[tuple[str, str]]:
        """(fact, value) for a reader."""
        cores, model = self.cpu
        rows = [("host", f"{self.user}@{self.hostname} ({self.host})"), ("system", self.os),
                ("python", ".".join(map(str, self.python)) if self.python else "not found"),
                ("cpu", f"{cores} cores, load {self.load:g}, {model}"),
                ("memory free", f"{self.mem_free_mib:,} MiB"),
                ("disk free", f"{self.disk_free_mib or 0:,} MiB at {self.root}"),
                ("systemd", self._systemd()),
                (f"port {self.port}", f"held by pid {self.port_holder.pid}: {self.port_holder.command}"
                 if self.port_holder else "free")]
        rows += self._gpus()
        rows += [("GPUs in use by", f"{x.who}: {x.experiment}, unit {x.unit}") for x in self.leases
                 if x.boot_id == self.boot_id]
        rows += [(f"unit {u.name}", f"{u.active} ({u.sub})" + (f", pid {u.pid}" if u.pid and u.running else ""))
                 for u in self.units] or [("units", "none")]
        return rows

    def _systemd(self) -> str:
        if not self.systemd:
            where = f"; inside a container ({self.container})" if self.container else ""
            return f"no, process 1 is {self.pid1 or 'unknown'}{where}" + ("; docker is there" if self.docker else "")
        user = "no user manager" if not self.user_manager else "user services " + (
            "stay after logout" if self.linger else "end with the last login")
        return (f"{self.systemd_version or 'yes'}, {self.systemd_state or 'state unknown'}; system services "
                f"{PRIVILEGE[self.privilege]}; {user}" + ("" if self.journal_readable else "; its journal needs root"))

    def _gpus(self) -> list[tuple[str, str]]:
        rows = [(f"GPU {g.index}", f"{g.name}, {g.used_mib:,} of {g.memory_mib:,} MiB used, driver {g.driver}, compute "
                 f"{g.compute_capability or 'unknown'}" + (", MIG on" if g.mig else "")) for g in self.gpus]
        rows += [(f"GPU {'?' if h.gpu is None else h.gpu} held", f"{h.used_mib:,} MiB by pid {h.pid}"
                  + (f" of {h.user}" if h.user else "") + (f": {h.command[:120]}" if h.command else ""))
                 for h in self.gpu_use.holders]
        return (rows or [("GPU", f"none: {self.gpu_trouble}" if self.gpu_trouble else "none")]) + self.topology.rows()

    def __repr__(self) -> str:
        rows = self.rows()
        width = max(len(k) for k, _ in rows)
        return "\n".join(f"{k:{width}}  {v}" for k, v in rows)

    def _repr_html_(self) -> str:
        return "<table>" + "".join(f"<tr><th style='text-align:left'>{html.escape(k)}</th>"
                                   f"<td style='text-align:left'>{html.escape(v)}</td></tr>"
                                   for k, v in self.rows()) + "</table>"


def command(exp: Experiment, root: str) -> Command:
    """The one command that reads everything. `root` is absolute (`host.root`)."""
    states = supervisor(exp.host.supervisor).states(root, exp.host.python)
    return sh(facts.script(), root, exp.host.python, str(exp.serve.port), *states.argv, limit_s=LIMIT_S)


def parse(result: Result, exp: Experiment, root: str, host: str) -> Survey:
    """`Survey` from that command's result; `HostError` when it could not be read."""
    read = facts.parse(result.check("survey").text, where=host)
    text = read.pop("units")
    states = supervisor(exp.host.supervisor).parse_states(Result(result.command, 0, text.encode(), host=host)) \
        if text.strip() else ()
    read.pop("home")
    links, numa = read.pop("links")
    wiring = Topology(links, numa=numa, **{name: read.pop(name) for name in ("p2p", "numa_nodes", "nics", "iommu")})
    return Survey(host=host, root=root, port=exp.serve.port, units=states, topology=wiring, **read)
