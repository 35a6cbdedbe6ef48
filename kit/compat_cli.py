"""`python -m kit compat`: does this drafter fit this target, before either is loaded?

    python -m kit compat --target models/Kimi-K2.6 --drafter models/kimi-k2.6-eagle3 --engine sglang==0.5.12.post1 \\
                         --algorithm EAGLE3 --tp 8 --context 32768
    python -m kit compat --host gpu-7 --engine sglang --engine-python /opt/sglang/bin/python --target /models/K …

A model is a folder or .gguf file of this machine (with --host: of that host), hf://org/name@revision, or an http(s)
address. Only headers and small files are read, never weights.

Exit status: 1 when something fails, 2 when it could not be judged (unknown engine or release, a model that cannot be
read), else 0.
"""

from __future__ import annotations

import argparse

from kit.checks import check_pair
from kit.compat import Engine, algorithm_named
from kit.compat.installed import Installed, read_installed
from kit.compat.pair import FOR_PACKAGING
from kit.errors import HostError, KitError, SpecError
from kit.findings import Finding, Report
from kit.httpreader import HttpReader
from kit.modelfacts import HostReader, LocalReader, ModelFacts, Reader, read_model
from kit.seams import Host

UNJUDGED = {"engine", "algorithm", "engine-version", "target-readable", "drafter-readable", "host"}


def main(argv: list[str], host: Host | None = None) -> int:
    """Runs the command on its own arguments (without the word `compat`); returns the exit status."""
    own, flags = (argv[:(i := argv.index("--"))], argv[i + 1:]) if "--" in argv else (argv, [])
    args = _parser().parse_args(own)
    args.flags = flags
    report = _report(args, host)
    print(report.to_json() if args.json else report)
    return exit_status(report)


def exit_status(report: Report) -> int:
    """1: something fails; 2: nothing could be judged; 0: go ahead (unknown findings are listed)."""
    if not report.ok:
        return 1
    return 2 if any(f.verdict == "unknown" and f.id in UNJUDGED for f in report) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("kit compat", description=__doc__.splitlines()[0], allow_abbrev=False,
                                     epilog="The engine's further flags may follow a lone --: some settle a question.")
    parser.add_argument("--target", required=True, metavar="MODEL", help="folder, .gguf file, hf://org/name@rev, URL")
    parser.add_argument("--drafter", metavar="MODEL", help="the same; leave out for n-gram, MTP or no speculation")
    parser.add_argument("--engine", default="any", metavar="NAME[==VERSION]", help="sglang==0.5.12.post1")
    parser.add_argument("--algorithm", help="in the engine's words; default: what the drafter is made for")
    parser.add_argument("--tp", type=int, default=1, help="tensor-parallel size")
    parser.add_argument("--context", type=int, help="tokens per request; default: the target's own")
    parser.add_argument("--host", help="read models and engine on this host (a name of ~/.ssh/config)")
    parser.add_argument("--engine-python", default="python3", metavar="PATH", help="on --host: the engine's own python")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    return parser


def _report(args: argparse.Namespace, host: Host | None) -> Report:
    stop = lambda id, e: Report((Finding(id, "unknown", e.what, fix=e.next, evidence=e.where),), args.target)  # noqa: E731
    try:
        Engine.parse(args.engine)
    except SpecError as e:
        return stop("engine", e)
    if not 1 <= args.tp <= 4096 or not (args.context is None or 1 <= args.context < 1 << 40):
        return stop("algorithm", SpecError("--tp and --context are counts", next="e.g. --tp 8 --context 32768"))
    try:
        algorithm = algorithm_named(args.algorithm) if args.algorithm else ""
    except SpecError as e:
        return stop("algorithm", e)
    try:
        host = host or (_connect(args.host) if args.host else None)
        there = read_installed(host, args.engine, args.engine_python) if host else Installed(args.engine)
    except HostError as e:
        return stop("host", e)
    facts: dict[str, ModelFacts | None] = {"target": None, "drafter": None}
    for role, where in (("drafter", args.drafter), ("target", args.target)):
        try:
            # only a whole model drafts through its own vocabulary, which takes a second to read
            facts[role] = read_model(reader(where, host), tokenizer=algorithm in ("", "draft")) if where else None
        except KitError as e:
            return stop(f"{role}-readable", e)
        drafter = facts["drafter"]
        algorithm = algorithm or (FOR_PACKAGING.get(drafter.packaging, "none") if drafter else "none")
    report = check_pair(facts["target"], drafter, engine=there.engine, algorithm=algorithm, context=args.context,
                        tp=args.tp, support=there.support, args=args.flags)
    return Report((*there.findings, *report.findings), report.title)


def reader(where: str, host: Host | None) -> Reader:
    """What a model was named as → what reads it."""
    if where.startswith("hf://"):
        repository, _, revision = where.removeprefix("hf://").partition("@")
        return HttpReader.hub(repository, revision or "main")
    if where.startswith(("http://", "https://")):
        return HttpReader(where)
    return HostReader(host, where) if host else LocalReader(where)


def _connect(name: str) -> Host:
    from kit.host import connect  # fabric is not loaded for what is local

    return connect(name)
