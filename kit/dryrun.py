"""Has the engine on the host read the command, before anything is written there; holds lint against what it says."""

from __future__ import annotations

from kit.engines import engine
from kit.findings import Finding, Report
from kit.lint import ENGINES, lint
from kit.lint.case import breaks_later
from kit.lint.versions import parse
from kit.seams import DryRun, Host
from kit.spec import Experiment

NOT_OF_THE_FLAGS = ("engine-version",)      # what lint says about itself


def dry_run(exp: Experiment, host: Host, architecture: str | None = None) -> Report:
    """The engine's own word on this arm's command, in one round trip. Writes nothing.

    architecture   class of the target, where known: lint then knows what the engine fills in

    A refusal is a failed finding with the engine's words and what to set; an engine without a dry run, or one that
    could not be asked, says so. Raises HostError alone, beside SpecError where the config makes no command.

    >>> kit.dryrun.dry_run(exp, host).ok
    """
    eng, title = engine(exp.engine.name), f"{exp.unit}, as {exp.engine.name} on {host.name} reads it"
    command = eng.dry_run(exp, host.root)
    if command is None:
        return Report((Finding("dry-run", "pass", f"{exp.engine.name} needs none: it refuses a flag at once"),), title)
    result = host.run(command)
    if result.exit is None:
        result.check("dry run")         # LinkLost
    answer = eng.read_dry_run(result, exp)
    return Report((*answer.findings, *_release(exp, answer), *_against_lint(exp, answer, host, architecture)), title)


def _release(exp: Experiment, answer: DryRun) -> tuple[Finding, ...]:
    """The flags were rendered for a release: another one there may read them otherwise."""
    wanted, there = parse(exp.engine.version or ""), parse(answer.version)
    if not wanted or not there or wanted == there:
        return ()
    return (Finding("dry-run-version", "warn", f"{exp.engine.name} {answer.version} is installed there, the config is "
                    f"written for {exp.engine.version}", "flags are rendered and judged for engine.version",
                    f"engine.version: {answer.version}"),)


def _against_lint(exp: Experiment, answer: DryRun, host: Host, architecture: str | None) -> tuple[Finding, ...]:
    """Where our rules and the engine's parser differ, we are wrong, and say so."""
    version = answer.version or exp.engine.version
    if answer.accepted is None or exp.engine.name not in ENGINES or not version:
        return ()
    unit = engine(exp.engine.name).service(exp, host.root)
    report = lint(exp.engine.name, version, list(unit.argv), dict(unit.env), architecture=architecture)
    ours = [f for f in report if f.verdict == "fail" and not breaks_later(f) and f.id not in NOT_OF_THE_FLAGS]
    left_open = [f for f in report if f.verdict == "unknown"]
    if bool(ours) != answer.accepted or (not ours and left_open):       # what is left open is no opinion
        return ()
    said = f"lint: {'; '.join(f'{f.id}: {f.what}' for f in ours)}" if ours else "lint: nothing against it"
    return (Finding("lint-disagrees", "warn", f"our rules and {exp.engine.name} {version} disagree about this command: "
                    "a fault of ours", f"{said} | {exp.engine.name}: {answer.said}",
                    f"believe {exp.engine.name}, and report both texts", said),)
