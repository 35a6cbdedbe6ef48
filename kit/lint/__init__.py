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
from kit.lint.case import RULES, Case, Target, capability
from kit.lint.config_file import words_of
from kit.lint.flags import known_versions, read, table
from kit.lint.pasted import Pasted, unwrap
from kit.lint.versions import Version, neighbours, parse, show
from kit.lint.vllm_config import gather, normalise

ENGINES = ("sglang", "vllm")
SERVE_MODEL, SERVE_TYPE = (0, 5, 16), (0, 5, 10)      # `sglang serve MODEL`, `--model-type T` (cli/serve.py)


def lint(engine: str, version: str, argv: list[str], env: Mapping[str, str] | None = None, gpu: str | None = None,
         config: str | Mapping[str, Any] | None = None, architecture: str | None = None,
         target: Target | None = None) -> Report:
    """Findings about one command line of one engine release.

    engine        "sglang" or "vllm"
    version       as pip names it, "0.5.12.post1"
    argv          flags; or a whole command, `vllm serve …`, an ExecStart line or a unit file as one word
    env           environment of the server, on top of what the command itself sets
    gpu           "sm_120" or "12.0"
    config        content of the engine's --config file: YAML text or a mapping
    architecture  class name of the target ("LlamaForCausalLM"), where known
    target        more of it than its class, where known: what a rule cannot know is `unknown`, not guessed

    A release between two that were read is judged by both. One newer than all keeps what every release that was read
    says alike, and says so; the rest, and what the newest does not know, is `unknown`.

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
    target = target or Target()
    target = dataclasses.replace(target, architecture=architecture or target.architecture)
    given = (engine, pasted, dict(env or {}), gpu, config, target)
    findings = [*_about_command(engine, pasted, gpu)]
    if above is None:
        findings += _foretold(known, given)
        findings.append(Finding("engine-version", "unknown", f"{engine} {version} is newer than all releases read",
                                f"what all of them say is kept, what {show(below)} says is marked unknown",
                                "ask the engine itself: a dry run on the host"))
    elif below == above:
        findings += [f for f, _ in _judge(below, *given)]
    else:
        findings += _agreed([f for f, _ in _judge(below, *given)], [f for f, _ in _judge(above, *given)], below, above,
                            version)
    return Report(tuple(findings), title)


def _judge(version: Version, engine: str, pasted: Pasted, env: dict[str, str], gpu: str | None,
           config: str | Mapping | None, target: Target) -> list[tuple[Finding, bool]]:
    """(finding, rests on what this release knows or lacks) of every rule."""
    flags = table(engine, version)
    words, dotted = (list(pasted.argv), []) if engine == "sglang" else normalise(list(pasted.argv))
    if engine == "sglang" and pasted.launcher.endswith("serve"):
        words = _served(words, version)
    parsed = read(words, flags, positionals=0 if engine == "sglang" else 1)
    from_file, problems = words_of(config, flags)
    if from_file:
        early = read(from_file, flags, "config")
        parsed.given = early.given + parsed.given
        parsed.problems = early.problems + parsed.problems
    case = Case(engine, flags, parsed, pasted.env | env, capability(gpu), pasted.user, target,
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


def _served(words: list[str], version: Version) -> list[str]:
    """What `sglang serve` hands to the server: a model in first place gets its flag, --model-type stays behind."""
    if words and not words[0].startswith("-") and version >= SERVE_MODEL:
        words = ["--model-path", *words]
    if "--model-type" in words and version >= SERVE_TYPE:
        at = words.index("--model-type")
        words = words[:at] + words[at + 2:]
    return [w for w in words if not (w.startswith("--model-type=") and version >= SERVE_TYPE)]


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


def _foretold(known: list[Version], given: tuple) -> list[Finding]:
    """Of a release newer than all that were read: what each of them says of this command, and what the newest does.

    A rule that rests on what a release lacks (a flag, a choice) foretells nothing: the next one may have it.
    """
    newest = [(f, asked) for f, asked in _judge(known[-1], *given) if f.verdict != "pass"]
    open_ = {(f.id, f.verdict, f.what) for f, asked in newest if not asked}
    for version in reversed(known[:-1]):
        if open_:
            open_ &= {(f.id, f.verdict, f.what) for f, _ in _judge(version, *given)}
    standing = f"so in every release that was read, {show(known[0])} … {show(known[-1])}"
    out = []
    for f, _ in newest:
        if (f.id, f.verdict, f.what) in open_:
            out.append(dataclasses.replace(f, why=f"{f.why}; {standing}" if f.why else standing))
        else:
            out.append(dataclasses.replace(f, verdict="unknown", what=f"{f.what} (so in {show(known[-1])})"))
    return out


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
