"""What a host looks like right now, as a frozen value. Pure: one command out, one parser in."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass, field

from kit import facts
from kit.command import Command, Result, sh
from kit.facts import Gpu, Holder, Present
from kit.seams import UnitState
from kit.spec import Experiment
from kit.supervisors import supervisor


@dataclass(frozen=True)
class Survey:
    """Facts about one host, for one experiment (its port, its folder), at one moment.

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
                ("systemd", "yes" if self.systemd else "no"),
                (f"port {self.port}", f"held by pid {self.port_holder.pid}: {self.port_holder.command}"
                 if self.port_holder else "free")]
        rows += [(f"GPU {g.index}", f"{g.name}, {g.used_mib:,} of {g.memory_mib:,} MiB used, driver {g.driver}, "
                  f"compute {g.compute_capability}") for g in self.gpus] or [("GPU", "none")]
        rows += [(f"unit {u.name}", f"{u.active} ({u.sub})" + (f", pid {u.pid}" if u.pid and u.running else ""))
                 for u in self.units] or [("units", "none")]
        return rows

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
    return sh(facts.script(), root, exp.host.python, str(exp.serve.port), *states.argv)


def parse(result: Result, exp: Experiment, root: str, host: str) -> Survey:
    """`Survey` from that command's result; `HostError` when it could not be read."""
    read = facts.parse(result.check("survey").text, where=host)
    text = read.pop("units")
    states = supervisor(exp.host.supervisor).parse_states(Result(result.command, 0, text.encode(), host=host)) \
        if text.strip() else ()
    read.pop("home")
    return Survey(host=host, root=root, port=exp.serve.port, units=states, **read)
