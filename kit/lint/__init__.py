"""Judges an engine's command line before it is launched: offline, pure, per release.

    from kit.lint import lint
    lint("sglang", "0.5.12.post1", ["--speculative-algorithm", "EAGLE3", …])

Rules are small functions with stable ids (`kit.lint.case.rule`); flags of each
release are data (`kit/lint/data`), taken from the engines' own sources.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from kit.findings import Finding, Report
from kit.lint import (  # noqa: F401  (each registers its rules)
    rules_flags,
    rules_open,
    sglang_excludes,
    sglang_rules,
    sglang_serve,
    sglang_spec,
    terms,
    vllm_rules,
)
from kit.lint.case import RULES, Case, capability
from kit.lint.config_file import words_of
from kit.lint.flags import known_versions, read, table
from kit.lint.pasted import Pasted, unwrap
from kit.lint.versions import Version, neighbours, parse, show
from kit.lint.vllm_config import gather, normalise

ENGINES = ("sglang", "vllm")


def lint(engine: str, version: str, argv: list[str], env: Mapping[str, str] | None = None, gpu: str | None = None,
         config: str | Mapping[str, Any] | None = None, architecture: str | None = None) -> Report:
    """Findings about one command line of one engine release.

    engine        "sglang" or "vllm"
    version       as pip names it, "0.5.12.post1"
    argv          flags; or a whole command, `vllm serve …`, an ExecStart line or a unit file as one word
    env           environment of the server, on top of what the command itself sets
    gpu           "sm_120" or "12.0"
    config        content of the engine's --config file: YAML text or a mapping
    architecture  class name of the target ("LlamaForCausalLM"), where known

    >>> lint("sglang", "0.5.12", ["--speculative-algorithm", "NGRAM", "--pp-size", "2"]).ok
    False
    """
    title = f"{engine}=={version}"
    if engine not in ENGINES:
        return Report((Finding("engine", "unknown", f"no rules for the engine {engine[:40]!r}",
                               fix=f"known: {', '.join(ENGINES)}"),), title)
    release = parse(version)
    known = list(known_versions(engine))
    below, above = neighbours(release, known) if release else (None, None)
    if below is None:
        return Report((Finding("engine-version", "unknown", f"{engine} {version[:40]!r} is not a release that was read",
                               fix=f"known: {show(known[0])} … {show(known[-1])}"),), title)
    pasted = unwrap(list(argv))
    given = (engine, pasted, dict(env or {}), gpu, config, architecture)
    findings = [*_about_command(engine, pasted, gpu)]
    if above is None:
        findings += [_uncertain(f, below) if asked else f for f, asked in _judge(below, *given)]
        findings.append(Finding("engine-version", "unknown", f"{engine} {version} is newer than all releases read",
                                f"judged as {show(below)}; what depends on the release is marked unknown",
                                "ask the engine itself: a dry run on the host"))
    elif below == above:
        findings += [f for f, _ in _judge(below, *given)]
    else:
        findings += _agreed([f for f, _ in _judge(below, *given)], [f for f, _ in _judge(above, *given)], below, above,
                            version)
    return Report(tuple(findings), title)


def _judge(version: Version, engine: str, pasted: Pasted, env: dict[str, str], gpu: str | None,
           config: str | Mapping | None, architecture: str | None) -> list[tuple[Finding, bool]]:
    """(finding, depends on the release) of every rule."""
    flags = table(engine, version)
    words, dotted = (list(pasted.argv), []) if engine == "sglang" else normalise(list(pasted.argv))
    if engine == "sglang" and pasted.launcher.endswith("serve") and words and not words[0].startswith("-"):
        words = ["--model-path", *words]
    parsed = read(words, flags, positionals=0 if engine == "sglang" else 1)
    from_file, problems = words_of(config, flags)
    if from_file:
        early = read(from_file, flags, "config")
        parsed.given = early.given + parsed.given
        parsed.problems = early.problems + parsed.problems
    case = Case(engine, flags, parsed, pasted.env | env, capability(gpu), pasted.user, architecture,
                whole=bool(pasted.launcher), config_problems=tuple(problems), env_written=bool(pasted.env))
    case.config_read = config is not None or case.last("--config") is None
    if engine == "vllm":
        case.spec_given, case.spec_problems = gather(case.text("--speculative-config"), dotted)
        case.spec = dict(case.spec_given)
        for flag, key in (("--spec-method", "method"), ("--spec-model", "model")):
            if case.text(flag):
                case.spec.setdefault(key, case.text(flag))
        if case.number("--spec-tokens") is not None:
            case.spec.setdefault("num_speculative_tokens", int(case.number("--spec-tokens")))
    out = []
    for _, check in RULES[engine]:
        case.asked = False
        for finding in check(case):
            if finding:
                out.append((finding, case.asked))
    return out


def _about_command(engine: str, pasted: Pasted, gpu: str | None) -> list[Finding]:
    out = []
    if pasted.unreadable:
        out.append(Finding("command", "unknown", "the command could not be split into words", pasted.unreadable,
                           "check its quotes"))
    if pasted.engine and pasted.engine != engine:
        out.append(Finding("command", "fail", f"this launches {pasted.engine}, not {engine}",
                           pasted.launcher[-80:], f"--engine {pasted.engine}==VERSION"))
    if gpu and capability(gpu) is None:
        out.append(Finding("gpu", "unknown", f"{gpu[:40]!r} is no compute capability", fix="sm_120, or 12.0"))
    return out


def _uncertain(finding: Finding, version: Version) -> Finding:
    if finding.verdict == "pass":
        return finding
    return dataclasses.replace(finding, verdict="unknown", what=f"{finding.what} (so in {show(version)})")


def _agreed(old: list[Finding], new: list[Finding], below: Version, above: Version, asked: str) -> list[Finding]:
    """What the releases around the one that is asked for say alike; the rest is unknown."""
    def mended(f: Finding, version: Version) -> tuple:
        return f.id, f.verdict, f.what.replace(show(version), "*")
    left, right = {mended(f, below) for f in old}, {mended(f, above) for f in new}
    out = [dataclasses.replace(f, what=f.what.replace(show(above), asked)) for f in new if mended(f, above) in left]
    for side, findings, other, version in (("not", old, right, below), ("not", new, left, above)):
        for f in findings:
            if mended(f, version) not in other and f.verdict != "pass":
                out.append(dataclasses.replace(f, verdict="unknown",
                                               what=f"{f.what} (so in {show(version)}, {side} in "
                                                    f"{show(above if version == below else below)})"))
    return out
