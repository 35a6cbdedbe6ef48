"""Turns the engine's --config YAML into the words its own merger would put before the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from kit.lint.flags import Table

LIMIT = 1 << 20


def words_of(config: str | Mapping[str, Any] | None, flags: Table) -> tuple[list[str], list[str]]:
    """(words, problems). True becomes a bare flag, False and null nothing, a list several words."""
    if config is None:
        return [], []
    if isinstance(config, str):
        try:
            config = yaml.safe_load(config[:LIMIT]) or {}
        except (yaml.YAMLError, RecursionError, ValueError) as e:
            return [], [f"not YAML: {' '.join(str(e).split())[:120]}"]
    if not isinstance(config, Mapping):
        return [], ["Config file must contain a dictionary at root level"]
    words: list[str] = []
    problems: list[str] = []
    for key, value in config.items():
        name = "--" + str(key).replace("_", "-")
        flag = flags.by_name.get(name)
        if value is None or value is False:
            if flag and flag.kind == "bool" and value is False:
                words.append("--no-" + name[2:])
        elif value is True:
            words.append(name) if not flag or flag.kind in ("flag", "bool") else words.extend((name, "true"))
        elif isinstance(value, list):
            words += [name, *map(str, value)]
        elif isinstance(value, Mapping):
            import json
            words += [name, json.dumps(dict(value), default=str)]
        else:
            if flag and flag.kind in ("flag", "bool", "gone"):
                problems.append(f"{key} is a switch: write true or false, not {str(value)[:40]!r}")
            else:
                words += [name, str(value)]
    return words, problems
