"""Reads the models where they are (on the host, else on this machine) and checks that they fit."""

from __future__ import annotations

from kit import project
from kit.checks import check_pair
from kit.errors import CheckError, KitError
from kit.findings import Finding, Report
from kit.modelfacts import HostReader, LocalReader, ModelFacts, read_model
from kit.seams import Host
from kit.spec import Checkpoint, Experiment


def facts(checkpoint: Checkpoint, host: Host, python: str = "python3", every_header: bool = False) -> ModelFacts:
    """The checkpoint's facts from its headers. Raises FetchError or HostError where it is nowhere yet."""
    if checkpoint.scheme == "folder" and (path := project.resolve(checkpoint.ref)).exists():
        return read_model(LocalReader(path), every_header)
    return read_model(HostReader(host, checkpoint.path(host.root), python), every_header)


def check(exp: Experiment, host: Host) -> Report:
    """Does this arm's drafter fit the target and the engine? A `Report`; `.require()` raises on a failure.

    >>> kit.check(exp.arm("eagle3"), host)
    """
    title = f"{exp.unit}: {exp.drafter.source if exp.drafter and exp.spec.needs_drafter else 'no drafter'} " \
            f"on {exp.target.source}"
    read: dict[str, ModelFacts | None] = {"target": None, "drafter": None}
    wanted = {"target": exp.target} | ({"drafter": exp.drafter} if exp.spec.needs_drafter and exp.drafter else {})
    for role, checkpoint in wanted.items():
        try:
            read[role] = facts(checkpoint, host, exp.host.python)
        except CheckError as e:     # it is there, and it is no model
            return Report((Finding(f"{role}-readable", "fail", f"the {role} is damaged: {e.what}", why=e.where,
                                   fix="fetch it again, or name another"),), title)
        except KitError as e:       # not there yet, or the host did not answer
            return Report((Finding(f"{role}-readable", "unknown", f"the {role} could not be read: {e.what}",
                                   why=e.where, fix="fetch it first"),), title)
    report = check_pair(read["target"], read["drafter"], engine=exp.engine.release, algorithm=exp.spec.algorithm,
                        context=exp.serve.context, tp=exp.serve.tp, args=exp.engine.args)
    return Report(report.findings, title)
