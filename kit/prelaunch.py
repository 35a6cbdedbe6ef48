"""Everything that can be known before a launch, in one look: the flags, the pair, the memory, the host, and the plan.

    flight = kit.preflight(exp, host)
    flight.lint; flight.fit; flight.memory; flight.host; flight.command; flight.plan
    flight                      # what would be launched, or the reasons not to
"""

from __future__ import annotations

import html
from dataclasses import dataclass, field
from functools import cached_property

from kit import project
from kit.checking import facts
from kit.checks import check_pair
from kit.command import sh
from kit.compat.installed import Installed, read_installed
from kit.dryrun import dry_run
from kit.engines import service
from kit.errors import KitError, PlanError
from kit.facts import BUSY_MIB
from kit.findings import Finding, Report, Verdict
from kit.lint import lint
from kit.lint.case import Target
from kit.memory import MemoryPlan, memory_plan
from kit.modelfacts import LocalReader, ModelFacts, read_model
from kit.nccl import advice
from kit.planning import fit, planned
from kit.seams import Host, Unit
from kit.spec import Checkpoint, Experiment
from kit.steps import Plan, diff
from kit.supervisors import supervisor
from kit.surveying import survey
from kit.surveys import Survey
from kit.words import Text, command_text


@dataclass(frozen=True)
class Words:
    """A command for reading: one flag a line, its environment before it."""

    unit: Unit

    def __repr__(self) -> str:
        return command_text(self.unit.argv, self.unit.env)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(repr(self))}</pre>"


@dataclass(frozen=True)
class Preflight:
    """Five reports, the command and the plan of one arm on one host. Falsy when something failed.

    lint     the complete command line, against the release
    fit      drafter against target and engine, from their headers
    memory   each GPU's memory; None where neither host nor config says what GPUs there are
    host     what the host has of what the launch needs
    plan     the steps; None where there can be none, and `host` says why
    dry      what the engine there itself says about the command
    unit     the unit file, or with host.supervisor: process the command, as it will be on the host
    before   as it is there now

    >>> kit.preflight(exp, host).require().plan
    """

    experiment: Experiment
    command: Words
    lint: Report
    fit: Report
    memory: MemoryPlan | None
    host: Report
    plan: Plan | None = field(repr=False)
    dry: Report = Report(())
    unit: Text = field(default=Text(), repr=False)
    before: str = field(default="", repr=False)

    @property
    def diff(self) -> Text:
        """The unit as a unified diff against what is on the host."""
        return diff(self.before, self.unit)

    @cached_property
    def report(self) -> Report:
        """All findings together, worst first."""
        parts = (self.lint, self.dry, self.fit, *([self.memory.report] if self.memory else []), self.host)
        return Report(tuple(f for part in parts for f in part), f"{self.experiment.unit} before its launch")

    @property
    def ok(self) -> bool:
        return self.report.ok and self.plan is not None

    __bool__ = lambda self: self.ok  # noqa: E731

    def require(self) -> Preflight:
        """Itself, or `CheckError` with the first failure."""
        self.report.require()
        return self

    @property
    def verdict(self) -> str:
        failed = [f for f in self.report if f.verdict == "fail"]
        if failed:
            return f"{self.experiment.unit} is not launched: {len(failed)} failed, the first is " \
                   f"{failed[0].id}: {failed[0].what}"
        unknown = sum(f.verdict == "unknown" for f in self.report)
        return f"{self.experiment.unit} can be launched" + (f"; {unknown} could not be judged" if unknown else "")

    def _telling(self) -> Report:
        return Report(tuple(f for f in self.report if f.verdict != "pass"))

    def __repr__(self) -> str:
        return f"{self.verdict}\n\n{self._telling()!r}\n\n{self.command!r}"

    def _repr_html_(self) -> str:
        return f"<p><b>{html.escape(self.verdict)}</b></p>{self._telling()._repr_html_()}{self.command._repr_html_()}"


def preflight(exp: Experiment, host: Host) -> Preflight:
    """Reads the host, the engine on it and the models' headers; starts and writes nothing.

    A model that is not on the host yet is judged by its `card`, where the config names one, and the report says so.
    Raises SpecError where the config makes no command, HostError where the host does not answer.

    >>> kit.preflight(exp.arm("eagle3"), host).ok
    """
    unit = service(exp, host.root)
    now = survey(exp, host)
    installed, found = _engine(exp, host)
    found = _gpus(exp, now) + found
    if now.gpus:
        found += advice(now.topology, now.gpus, unit.env, exp.serve.tp, unit.argv)
    roles = _roles(exp)
    there = _present(host, [c.path(host.root) for c in roles.values()])
    models: dict[str, ModelFacts | None] = {}
    for (role, checkpoint), is_there in zip(roles.items(), there, strict=True):
        models[role], finding = _model(role, checkpoint, exp, host, is_there)
        found.append(finding)
    steps, refusal = _plan(exp, now)
    found += refusal
    target, drafter = models["target"], models.get("drafter")
    arch, memory_mib, used_mib = _gpu(exp, now)
    running = now.unit(unit.name)
    known = target is not None and ("drafter" not in models or drafter is not None)
    return Preflight(
        exp, Words(unit),
        lint=_lint(exp, unit, arch, target),
        fit=check_pair(target, drafter, engine=installed.engine, algorithm=exp.spec.algorithm,
                       context=exp.serve.context, tp=exp.serve.tp, support=installed.support, args=exp.engine.args)
        if known else _unread(models),
        memory=_memory(exp, target, drafter, memory_mib, used_mib) if known and memory_mib else None,
        host=Report(tuple(found), f"what {host.name} has"), plan=steps,
        dry=_dry_run(exp, host, all(there) and bool(exp.engine.python), target),
        unit=Text(supervisor(exp.host.supervisor).text(unit, host.root, host.user)),
        before=running.about.get("_text", "") if running else "")


def _dry_run(exp: Experiment, host: Host, possible: bool, target: ModelFacts | None) -> Report:
    """The engine's own word; nothing where the user brings no engine, unknown before its models are there."""
    if possible:
        return dry_run(exp, host, target.architecture if target else None)
    if not exp.engine.python:
        return Report(())
    return Report((Finding("dry-run", "unknown", "the engine was not asked: it reads the models' configs, and they are "
                           "not all there", fix="fetch them; the plan asks it before it starts anything"),))


def _roles(exp: Experiment) -> dict[str, Checkpoint]:
    return {"target": exp.target} | ({"drafter": exp.drafter} if exp.spec.needs_drafter and exp.drafter else {})


def _lint(exp: Experiment, unit: Unit, arch: str | None, target: ModelFacts | None) -> Report:
    """The complete command against its release. Flags by hand hide speculation from the other checks: that is said."""
    said = lint(exp.engine.name, exp.engine.version or "", list(unit.argv), dict(unit.env), arch,
                target=Target(target.architecture or None, target.config or None) if target else None)
    by_hand = [word for word in exp.engine.args if word.startswith("--spec")]
    if exp.spec.algorithm != "none" or not by_hand:
        return said
    return Report((*said, Finding(
        "speculation-by-hand", "warn", f"engine.args speculate ({by_hand[0]} …) in an arm that does not",
        "so no drafter was judged, nor counted in the memory plan", "write an arm: {algorithm: eagle3, steps: 3}")),
        said.title)


def _memory(exp: Experiment, target: ModelFacts, drafter: ModelFacts | None, gpu_mib: int, used_mib: int) -> MemoryPlan:
    spec, serve = exp.spec, exp.serve
    return memory_plan(target, drafter, gpu_mib=gpu_mib, used_mib=used_mib, tp=serve.tp, engine=exp.engine.release,
                       context=serve.context, mem_fraction_static=serve.mem_fraction, max_running_requests=serve.slots,
                       algorithm=spec.algorithm, steps=spec.steps, topk=spec.topk, verified=spec.verified,
                       graphs="--disable-cuda-graph" not in exp.engine.args)


def _model(role: str, checkpoint: Checkpoint, exp: Experiment, host: Host, there: bool
           ) -> tuple[ModelFacts | None, Finding]:
    """Its facts from where it is, else from its card; and what that says about the host."""
    def say(verdict: Verdict, what: str, why: str = "", fix: str = "") -> Finding:
        return Finding(f"{role}-there", verdict, f"the {role} {what}: {checkpoint.source}", why, fix)

    if there or checkpoint.scheme == "folder":      # of this machine, sent when the plan is applied
        try:
            return facts(checkpoint, host, exp.host.python, every_header=True), say("pass", "is there")
        except KitError as e:
            return None, say("fail", "cannot be read", e.what, e.next)
    missing = ("fail", "is not there", "copy it there, or mend the path") if checkpoint.scheme == "host" else \
        ("warn", "is not there yet", "the plan fetches it")
    verdict, what, fix = missing
    if not checkpoint.card:
        return None, say(verdict, what, "so it was not judged; the config names no card of it", fix)
    card = read_model(LocalReader(project.resolve(checkpoint.card)), every_header=True)
    return card, say(verdict, what, f"judged by its card, {checkpoint.card}, until then", fix)


def _present(host: Host, paths: list[str]) -> list[bool]:
    """Which of them are on the host."""
    script = 'for p in "$@"; do [ -e "$p" ] && echo yes || echo no; done'
    return [line == "yes" for line in host.run(sh(script, *paths)).check("looking for files").text.split()]


def _unread(models: dict[str, ModelFacts | None]) -> Report:
    return Report(tuple(Finding(f"{role}-readable", "unknown", f"the {role} could not be read",
                                "it is not there, or damaged", "see what was found on the host")
                        for role, model in models.items() if model is None), "drafter and target")


def _gpu(exp: Experiment, now: Survey) -> tuple[str | None, int | None, int]:
    """(arch, memory MiB, in use MiB) of the smallest GPU of the host, else of those that the config was written for."""
    if now.gpus:
        return (now.gpus[0].compute_capability or None, min(g.memory_mib for g in now.gpus),
                max(g.used_mib for g in now.gpus))
    declared = exp.host.gpus
    return (declared.arch, declared.memory_mib, 0) if declared else (None, None, 0)


def _gpus(exp: Experiment, now: Survey) -> list[Finding]:
    if exp.host.gpus is None and exp.serve.tp == 1 and not now.gpus:
        return []                               # served by the CPU
    count, declared = len(now.gpus), exp.host.gpus
    written = f"the config is written for {declared.count} GPUs of {declared.memory_mib:,} MiB, as is the memory plan" \
        if declared and not count else ""
    if count < exp.serve.tp:
        return [Finding("host-gpus", "fail", f"{count or 'no'} GPUs there, {exp.serve.tp} share the model", written,
                        "another host, or serve.tp")]
    busy = [f"{g.index} ({g.used_mib:,} MiB)" for g in now.gpus if g.used_mib > BUSY_MIB]
    found = [Finding("host-gpus-busy", "warn", f"memory is in use on GPU {', '.join(busy)}",
                     "the memory plan takes it off; an arm of ours that runs is stopped first",
                     "see who: nvidia-smi on the host")] if busy else []
    return [*found, Finding("host-gpus", "pass", f"{count} GPUs: {now.gpus[0].name}, {now.gpus[0].memory_mib:,} MiB")]


def _engine(exp: Experiment, host: Host) -> tuple[Installed, list[Finding]]:
    """The engine as installed, where the user brings it: its release and the classes it has."""
    python = exp.engine.python
    if not python:
        return Installed(exp.engine.release), []
    if not all(_present(host, [python])):
        return Installed(exp.engine.release), [Finding(
            "host-engine", "fail", f"engine.python is not there: {python}", fix=f"install {exp.engine.release} on the "
            "host, and name its environment's python")]
    installed = read_installed(host, exp.engine.release, python)
    return installed, [Finding("host-engine", "pass", f"engine.python is there: {python}"), *installed.findings]


def _plan(exp: Experiment, now: Survey) -> tuple[Plan | None, list[Finding]]:
    found: list[Finding] = []
    for id, asked in (("host-supervisor", fit), ("host-plan", planned)):
        try:
            plan = asked(exp, now)
        except PlanError as e:
            found.append(Finding(id, "fail", e.what, fix=e.next))
            plan = None
    return plan, found
