"""Somebody's running service → an `Experiment`: from a unit's text, a process's argv, a server's own answer. Pure.

    found = Found(host="gpu-7", root="/home/u/.specbook", where="system/x.service", unit=unitfile.parse(text))
    adopted(found).experiment

Nothing secret gets into the result: keys are named, never carried. What no field of a config can hold stays as it was
written, in `engine.args`. `differences` holds what the kit would render against what was found.
"""

from __future__ import annotations

import html
import posixpath
from dataclasses import dataclass, field
from functools import cached_property

from kit.attach import answers, making, readings
from kit.attach.differences import differences
from kit.attach.flags import Flags
from kit.attach.found import Found, Process
from kit.findings import Finding, Report
from kit.lint import ENGINES, lint
from kit.lint.flags import known_versions
from kit.lint.versions import show
from kit.spec import Experiment

__all__ = ["Adopted", "Asked", "Found", "Process", "adopted", "asked"]


@dataclass(frozen=True)
class Adopted:
    """A service that is not ours, as the kit sees it: it can be checked, followed and measured, never stopped.

    experiment    with `host.supervisor` "foreign:…"
    command       as found, secrets masked
    masked        names of the variables and flags whose values were not taken
    report        what was noticed on the way
    differences   what the kit would render otherwise, and why
    ours          the kit itself had written the unit, or started the process

    >>> kit.adopt(host, "sglang-k26-eagle3.service").experiment
    """

    experiment: Experiment
    unit_name: str
    scope: str
    pid: int | None
    command: str = field(repr=False)
    masked: tuple[str, ...]
    report: Report = field(repr=False)
    differences: Report = field(repr=False)
    ours: bool = False

    @cached_property
    def lint(self) -> Report:
        """The command as found, with its environment and its user, judged for its release, or the newest read."""
        exp = self.experiment
        if exp.engine.name not in ENGINES:
            unknown = Finding("engine", "unknown", f"no rules for the flags of {exp.engine.name}")
            return Report((unknown,), exp.engine.release)
        newest = show(list(known_versions(exp.engine.name))[-1])
        return lint(exp.engine.name, exp.engine.version or newest, [self.command])

    @property
    def words(self) -> str:
        exp = self.experiment
        what = self.unit_name or (f"pid {self.pid}" if self.pid else f"port {exp.serve.port}")
        whose = "the kit's own" if self.ours else "not ours: followed and measured, never started or stopped"
        return f"{what} ({exp.engine.release}) as {exp.unit}; {whose}"

    def __repr__(self) -> str:
        return f"{self.words}\n\n{_told(self.report)!r}\n\n{self.differences!r}"

    def _repr_html_(self) -> str:
        return f"<p><b>{html.escape(self.words)}</b></p>{_told(self.report)._repr_html_()}" \
               f"{self.differences._repr_html_()}"


def _told(report: Report) -> Report:
    return Report(tuple(f for f in report if f.verdict != "pass"), report.title)


def adopted(found: Found, name: str = "") -> Adopted:
    """The experiment behind what was found. SpecError where no config can describe it, with what stands in the way.

    name   of the experiment; default: the served name, or the unit's
    """
    said: list[Finding] = []
    started, argv = making.command(found, said)
    version = making.release(found, said)
    flags = Flags(started.engine, version, started.flags)
    given = {f"--{k}": v for k in (c.replace("_", "-") for c in answers.CHECKED) if (v := flags.look(f"--{k}"))}
    reading = readings.READERS[started.engine](flags)
    for flag, asked, runs in answers.resolved(found.info, given):
        said.append(Finding("adopt-resolved", "warn", f"{flag} {asked} was asked for; the server runs with {runs}",
                            "it changes what it is given without a word", f"write {runs}, or other values"))
    env, secret = making.environment(found, started)
    exp = making.experiment(found, started, reading, env, [s for s in secret if s.isidentifier()], version, name, said)
    said += [*reading.found, *making.noticed(found, started, reading, secret)]
    command = making.shown(found, started, argv, env, secret)
    unit = found.unit
    return Adopted(exp, unit.name if unit else "", found.scope, found.process.pid if found.process else None, command,
                   tuple(dict.fromkeys([*secret, *reading.secrets])), Report(tuple(said), "what was adopted"),
                   differences(exp, found, started, env), _ours(found))


@dataclass(frozen=True)
class Asked:
    """Where a server answers, and the folder its packages are installed in; "" where nothing tells."""

    engine: str
    environment: str
    port: int


def asked(found: Found) -> Asked:
    """What can be known before the server is asked itself. SpecError where no command of a server is in sight."""
    if found.port and not found.process and not found.unit:
        return Asked("", "", found.port)
    started, _ = making.command(found, [])
    port = Flags(started.engine, None, started.flags).look("--port")
    folder = posixpath.dirname(posixpath.dirname(started.python)) if started.python.startswith("/") else \
        started.launch.get("conda", "")
    return Asked(started.engine, "" if making.contained(found, started) else folder,
                 found.port or (int(port) if port and port.isdigit() else making.PORTS[started.engine]))


def _ours(found: Found) -> bool:
    marked = found.unit is not None and any(key.startswith("X-Specbook.") for key in found.unit.settings)
    return marked or bool(found.process and "SPECBOOK_UNIT" in (found.process.environ or {}))
