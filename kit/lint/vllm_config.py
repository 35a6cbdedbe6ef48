"""Gathers vLLM's speculative settings from JSON, dotted flags and --spec-* into one mapping."""

from __future__ import annotations

import json
from typing import Any

NAMES = ("--speculative-config", "-sc")


def normalise(argv: list[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """argv with vLLM's liberties undone, and its dotted settings as (name, text).

    >>> normalise(["--max_model_len=1", "--speculative-config.method", "eagle3"])
    (['--max-model-len=1'], [('speculative-config.method', 'eagle3')])

    Underscores become dashes, -O3 becomes --optimization-level 3, and `--a.b v` leaves the list.
    """
    out: list[str] = []
    dotted: list[tuple[str, str]] = []
    i = 0
    while i < len(argv):
        word = argv[i]
        i += 1
        if word.startswith("--") and len(word) > 2:
            head, eq, tail = word.partition("=")
            name, dot, rest = head.partition(".")
            name = "--" + name[2:].replace("_", "-")
            if dot and not eq and i < len(argv):
                tail, i = argv[i], i + 1
            if dot:
                dotted.append((name[2:] + "." + rest, tail))
            else:
                out.append(name + eq + tail)
        elif word.startswith("-sc.") and len(word) > 4:
            head, eq, tail = word.partition("=")
            if not eq and i < len(argv):
                tail, i = argv[i], i + 1
            dotted.append(("speculative-config." + head[4:], tail))
        elif word.startswith("-O") and len(word) > 2:
            out += ["--optimization-level", word[2:].removeprefix("=")]
        else:
            out.append(word)
    return out, dotted


def gather(text: str | None, dotted: list[tuple[str, str]]) -> tuple[dict[str, Any], list[str]]:
    """The speculative mapping, and what is wrong with it. Dashes in keys read as underscores."""
    spec: dict[str, Any] = {}
    problems: list[str] = []
    if text is not None:
        try:
            value = json.loads(text)
            if isinstance(value, dict):
                spec = {str(k).replace("-", "_"): v for k, v in value.items()}
            else:
                problems.append(f"a JSON object is wanted, not {type(value).__name__}")
        except (ValueError, RecursionError) as e:
            problems.append(f"argument --speculative-config: Value {text[:60]!r} cannot be converted: {str(e)[:80]}")
    for name, raw in dotted:
        root, _, key = name.partition(".")
        if root == "speculative-config":
            try:
                spec[key.replace("-", "_")] = json.loads(raw)
            except (ValueError, RecursionError):
                spec[key.replace("-", "_")] = raw
    return spec, problems
