"""Which model classes an engine release knows: its table, or what the installed engine's source says.

The table is the offline fallback. A release that lies between two that were
read is known where both agree; a newer one is not known at all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from kit import shipping
from kit.command import Command
from kit.errors import ParseError
from kit.lint.versions import Version, neighbours, parse, show

CAPTURES = {"eagle3": ("set_eagle3_layers_to_capture", "set_aux_hidden_state_layers"),
            "dflash": ("set_dflash_layers_to_capture", "set_aux_hidden_state_layers")}


@dataclass(frozen=True)
class Support:
    """Answers for one release. True, False, or None: not known.

    classes    {class: abilities}; abilities are "known", "eagle3", "dflash"
    doubtful   (class, ability) on which the releases around it disagree
    source     for the reader: the installed engine, or the table
    """

    source: str
    classes: Mapping[str, frozenset[str]]
    doubtful: frozenset[tuple[str, str]] = frozenset()

    def has(self, name: str, ability: str = "known") -> bool | None:
        if not name or (name, ability) in self.doubtful:
            return None
        return ability in self.classes.get(name, frozenset())


@cache
def _table(engine: str) -> dict:
    file = resources.files("kit.compat").joinpath("data", f"{engine}_classes.json")
    return json.loads(file.read_text()) if file.is_file() else {"versions": [], "classes": {}}


@cache
def from_table(engine: str, version: Version | None) -> Support | None:
    """Of a release; None when the table cannot tell (no version said, too old, too new, no table)."""
    data = _table(engine)
    known = [parse(v) for v in data["versions"]]
    below, above = neighbours(version, known) if version else (None, None)
    if below is None or above is None:
        return None
    low, high = (_abilities(data["classes"], v) for v in (below, above))
    doubtful = {(c, a) for c in low.keys() | high.keys()
                for a in low.get(c, frozenset()) ^ high.get(c, frozenset())}
    return Support(f"table of {engine} {show(version)}", low | high, frozenset(doubtful))


def _abilities(classes: dict, at: Version) -> dict[str, frozenset[str]]:
    found = {}
    for name, spans in classes.items():
        has = {ability for ability, list_ in spans.items()
               if any(parse(a) <= at and (b is None or at <= parse(b)) for a, b in list_)}
        if has:
            found[name] = frozenset(has)
    return found


def first_release(engine: str, name: str, ability: str = "known") -> str:
    """Earliest release in the table with it, "" if none."""
    spans = _table(engine)["classes"].get(name, {}).get(ability)
    return spans[0][0] if spans else ""


def newest(engine: str) -> str:
    versions = _table(engine)["versions"]
    return versions[-1] if versions else ""


def question(engine: str, python: str) -> Command:
    """Asks the engine that `python` has for its classes: reads its source, imports nothing of it. One round trip."""
    return Command((python, "-", engine), shipping.content("engine_classes.py"), limit_s=120)


def from_answer(said: bytes, where: str = "") -> tuple[Support, str]:
    """What `kit/remote/engine_classes.py` printed → (Support, version)."""
    try:
        answer = json.loads(said)
        error, classes = answer["error"], answer["classes"]
        found = {name: frozenset({"known", *(a for a, ms in CAPTURES.items() if set(ms) & set(methods))})
                 for name, methods in classes.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise ParseError(f"the host's answer about its engine was not understood: {e}", where=where,
                         next="does its login shell print something by itself?") from None
    if error:
        raise ParseError(f"the installed engine could not be read: {error}", where=where,
                         next="name the python that has the engine")
    return Support(f"source of the installed {answer['engine']} {answer['version']}".strip(), found), answer["version"]
