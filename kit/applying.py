"""Carries out a plan's steps on a host, one after the other, inside a job."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import singledispatchmethod

from kit import gpus, health, launches
from kit.checking import check
from kit.command import Command, sh
from kit.dryrun import dry_run
from kit.errors import Cancelled, CommandError, KitError, PlanError, SpecError
from kit.following import run_to_end, start, state, stop
from kit.job import Job
from kit.seams import Host, Unit, UnitState
from kit.sources import source
from kit.spec import Experiment
from kit.steps import (
    Check,
    Claim,
    DryRun,
    Fetch,
    Forget,
    Free,
    Healthy,
    Plan,
    Remove,
    Run,
    Secrets,
    Start,
    Stop,
    Write,
)
from kit.supervisors import supervisor

# The folder goes when nothing else is in it, and the root with its last folder.
REMOVE = r"""
folder=$1 root=$2; shift 2
[ -d "$folder" ] || exit 0
for only; do find "$folder/" -mindepth 1 -maxdepth 1 -name "$only" -exec rm -rf -- {} + || exit 1; done
rmdir -- "$folder" 2>/dev/null && rmdir -- "$root" 2>/dev/null || true
"""


class Applier:
    """One plan, one host, one job. `run()` returns what the last Healthy step measured, in seconds."""

    def __init__(self, plan: Plan, host: Host, job: Job):
        self.plan, self.host, self.job = plan, host, job
        self.exp: Experiment = plan.experiment
        self.sup = supervisor(self.exp.host.supervisor)
        self.python = self.exp.host.python
        self.started: list[str] = []        # services this plan started, until they are healthy
        self.claimed: list[str] = []        # those for which it left a note on the host
        self.healthy_s: float | None = None

    def run(self) -> float | None:
        if self.plan.steps and self.sup.start("any", self.host.root, self.python).as_root:
            self.host.run(Command(("true",), as_root=True)).check("becoming root")      # before anything long
        try:
            for i, step in enumerate(self.plan.steps):
                verb = type(step).__name__.lower()
                self.job.progress(i, len(self.plan), f"{verb} {step.subject}")
                self.job.phase(f"{verb} {step.subject}")
                self.job.line(f"{i + 1}. {verb} {step.subject}: {step.why}")
                self.do(step)
            if self.plan.want == "serving" and self.healthy_s is None and not self._serves():
                self.do(Healthy(self.exp.unit, self.exp.serve.healthy_within_s, "it was started before"))
        except Cancelled:
            self._take_back()
            raise
        except KitError:
            self._let_go()
            raise
        self.job.progress(len(self.plan), len(self.plan), "done")
        return self.healthy_s

    def _serves(self) -> bool:
        """It ran already: is it healthy too? Then its log, which may be long, need not be read."""
        began = time.monotonic()
        verdict, said = health.judge(self.exp, self.host)
        self.job.line(f"{self.exp.unit}: {said}")
        if verdict == "useless":
            raise health.of_no_use(self.exp, self.host, said)
        if verdict == "healthy":
            self.healthy_s = time.monotonic() - began
        return verdict == "healthy"

    def _take_back(self) -> None:
        """A cancelled launch leaves nothing half-started behind."""
        for name in self.started:
            try:
                stop(self.host, self.sup, self.python, name, self.exp.serve.stop_within_s)
                self.job.line(f"stopped {name}: it was not healthy yet")
            except KitError as e:
                self.job.line(f"could not stop {name}: {e.what}")
        self._let_go()

    def _let_go(self) -> None:
        """What does not run uses no GPU: no second experimenter is told so."""
        for name in self.claimed:
            with suppress(KitError):        # what went wrong before is the news
                if not state(self.host, self.sup, self.python, name).running:
                    gpus.release(self.host, name)

    @singledispatchmethod
    def do(self, step) -> None:
        raise PlanError(f"no way to do {type(step).__name__}", next="report it")

    @do.register
    def _(self, step: Write) -> None:
        self.host.write(step.path, step.content, step.mode)

    @do.register
    def _(self, step: Run) -> None:
        last: list[str] = []

        def keep(text: str) -> None:
            last.append(text)
            del last[:-4]
            self.job.line(text)

        ended = self.run_job(step.unit, keep)
        if ended.result != "success":
            how = f"exit {ended.exit_code}" if ended.exit_code is not None else ended.signal or ended.result
            raise CommandError(f"{step.unit.name} ended with {how}: {' | '.join(last) or 'it said nothing'}",
                               where=self.host.name,
                               next=f"read its log: kit.follow({step.unit.name!r}, host, {self.sup.name!r})")

    @do.register
    def _(self, step: Fetch) -> None:
        files = source(step.checkpoint.scheme).fetch(step.checkpoint, step.dest, self.host, self.run_job,
                                                     self.job.progress, self.python)
        manifest = {"source": step.checkpoint.source, "files": files}
        self.host.write(f"{step.dest}/.specbook.json", json.dumps(manifest).encode())

    @do.register
    def _(self, step: Check) -> None:
        report = check(self.exp, self.host)
        for finding in report:
            self.job.line(f"{finding.verdict} {finding.id}: {finding.what}")
        report.require()

    @do.register
    def _(self, step: DryRun) -> None:
        report = dry_run(self.exp, self.host)
        for finding in report:
            self.job.line(f"{finding.verdict} {finding.id}: {finding.what}")
        report.require()

    @do.register
    def _(self, step: Secrets) -> None:
        lines = []
        for name in step.names:
            if name not in os.environ:
                raise SpecError(f"engine.secrets: {name} is not set on this machine", where=self.exp.name,
                                next=f"export {name} before the notebook starts, or take it out of the config")
            if not os.environ[name].isprintable():      # the file is read by line, and twice: by systemd and by us
                raise SpecError(f"engine.secrets: {name} holds a line break or another control character",
                                where=self.exp.name, next="give its value without it")
            lines.append(f"{name}={json.dumps(os.environ[name], ensure_ascii=False)}\n")
        self.host.write(step.path, "".join(lines).encode(), 0o600)

    @do.register
    def _(self, step: Stop) -> None:
        stop(self.host, self.sup, self.python, step.name, step.timeout_s)
        gpus.release(self.host, step.name)

    @do.register
    def _(self, step: Free) -> None:
        gpus.wait_free(self.host, step.within_s, self.job.line, self.job.raise_if_cancelled)

    @do.register
    def _(self, step: Claim) -> None:
        self.claimed.append(step.unit.name)
        gpus.claim(self.host, step.unit, step.seen)

    @do.register
    def _(self, step: Start) -> None:
        self.started.append(step.unit.name)
        start(self.host, self.sup, self.python, step.unit)

    @do.register
    def _(self, step: Healthy) -> None:
        before = launches.expected_s(self.exp, self.host.name)
        self.job.line(f"earlier starts took {before:.1f} s" if before else "no earlier start of this to compare with")
        self.healthy_s = health.wait_healthy(self.exp, self.host, step.within_s, self.job.line,
                                             self.job.raise_if_cancelled, step.unit in self.started)
        if self.started:
            try:
                launches.record(self.exp, self.host.name, self.healthy_s)
            except OSError as e:        # it runs all the same
                self.job.line(f"this start is not remembered: {e.filename}: {e.strerror}")
        self.started.clear()
        self.job.line(f"healthy after {self.healthy_s:.1f} s")

    @do.register
    def _(self, step: Forget) -> None:
        self.sup.explain(self.host.run(self.sup.remove(step.name, self.host.root, self.python)), Unit(step.name, ()))
        gpus.release(self.host, step.name)
        self.host.run(sh('rm -f -- "$1"', f"{self.host.root}/secrets/{step.name}.env")).check("forgetting secrets")

    @do.register
    def _(self, step: Remove) -> None:
        inside = step.path.removeprefix(self.host.root + "/")
        if inside == step.path or inside.startswith((".", "/")) or ".." in inside.split("/"):
            raise PlanError(f"{step.path} is not below the kit's folder", where=self.host.root, next="report it")
        words = sh(REMOVE, step.path, self.host.root, *step.only)
        words = replace(words, as_root=bool(self.exp.host.run_as))      # what that user wrote is not ours to delete
        self.host.run(words).check(f"remove {step.path}")

    def run_job(self, unit: Unit, on_line: Callable[[str], None]) -> UnitState:
        """Run a job unit to its end, on the host, under the supervisor."""
        unit = replace(unit, about={**unit.about, "experiment": self.exp.name})     # so that undo finds it
        return run_to_end(self.host, self.sup, self.python, unit, on_line, self.job.raise_if_cancelled)
