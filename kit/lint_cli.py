"""`python -m kit lint`: judge a command line before it is launched.

    python -m kit lint --engine sglang==0.5.12.post1 --gpu sm_120 -- --speculative-algorithm EAGLE3 …
    python -m kit lint --engine vllm==0.32.0 - < /etc/systemd/system/vllm.service

Exit status: 1 when something fails, 2 when it could not be judged (unknown
engine or release, nothing to read), else 0.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from kit.findings import Finding, Report
from kit.lint import lint
from kit.lint.case import Target
from kit.lint.config_file import LIMIT
from kit.lint.pasted import unwrap

UNJUDGED = {"engine", "engine-version", "command", "input"}


def main(argv: list[str]) -> int:
    """Runs the command on its own arguments (without the word `lint`); returns the exit status."""
    own, words = (argv[:(i := argv.index("--"))], argv[i + 1:]) if "--" in argv else (argv, [])
    parser = argparse.ArgumentParser("kit lint", description=__doc__.splitlines()[0], allow_abbrev=False,
                                     epilog="Put the engine's flags, or the whole command, after a lone --.")
    parser.add_argument("--engine", required=True, metavar="NAME==VERSION", help="sglang==0.5.12.post1")
    parser.add_argument("--gpu", metavar="sm_NN", help="compute capability of the GPUs, e.g. sm_120")
    parser.add_argument("--architecture", metavar="CLASS", help="class name of the target, where known")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="environment of the server")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument("stdin", nargs="?", choices=["-"], help="read the command or unit file from standard input")
    args = parser.parse_args(own)
    if args.stdin:
        words = [sys.stdin.read(LIMIT)]
    report = _judge(args, words)
    print(report.to_json() if args.json else report)
    return exit_status(report)


def exit_status(report: Report) -> int:
    """1: something fails; 2: nothing could be judged; 0: go ahead (unknown findings are listed)."""
    if not report.ok:
        return 1
    return 2 if any(f.verdict == "unknown" and f.id in UNJUDGED for f in report) else 0


def _judge(args: argparse.Namespace, words: list[str]) -> Report:
    name, _, version = args.engine.partition("==")
    if not any(w.strip() for w in words):
        return Report((Finding("input", "unknown", "no flags to judge", fix="put them after a lone --"),), args.engine)
    env = dict(pair.split("=", 1) for pair in args.env if "=" in pair)
    flags = list(unwrap(words).argv)
    return lint(name, version, words, env, args.gpu, _config(flags), args.architecture, _target(flags))


def _config(flags: list[str]) -> str | None:
    """Content of the engine's --config file, if it is on this machine."""
    return _text(Path(path)) if (path := _value(flags, "--config")) else None


def _target(flags: list[str]) -> Target | None:
    """What the model's own folder says, if it is on this machine."""
    named = _value(flags, "--model-path", "--model") or (flags[0] if flags else "")
    if not named or named.startswith("-"):
        return None
    try:
        config = json.loads(_text(Path(named) / "config.json") or "")
    except (ValueError, RecursionError):
        return None
    folder = (Path(named) / "dspark" / "config.json").is_file()
    return Target(config=config, dspark_folder=folder) if isinstance(config, dict) else None


def _value(flags: list[str], *names: str) -> str:
    for word, after in zip(flags, [*flags[1:], ""], strict=False):
        name, equals, value = word.partition("=")
        if name in names:
            return value if equals else after
    return ""


def _text(path: Path) -> str | None:
    try:
        with path.open("rb") as f:
            return f.read(LIMIT).decode("utf-8", "replace")
    except (OSError, ValueError):
        return None
