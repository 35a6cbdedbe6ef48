"""Reads a command line the way the engine's argparse would, and keeps every complaint.

The flags of each release are data (`data/*_flags.json`); this module knows
argparse: unique prefixes, `--a=b`, `--no-x`, `nargs`, what counts as a value.
"""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass, field
from importlib import resources

from kit.lint.versions import Version, parse

VALUELESS = ("flag", "bool", "gone")
NEGATIVE = re.compile(r"^-\d+$|^-\d*\.\d+$")


@dataclass(frozen=True)
class Flag:
    """One flag of one release. kind: int float str json size | flag | bool | gone."""

    names: tuple[str, ...]
    kind: str
    nargs: str | int | None = None
    choices: tuple = ()
    message: str = ""           # what replaces it, for a deprecated or removed flag
    required: bool = False

    @property
    def name(self) -> str:
        return self.names[0]


@dataclass(frozen=True)
class Problem:
    """What argparse would refuse. kind: unknown ambiguous missing-value value choice explicit gone."""

    kind: str
    spelled: str
    says: str                   # in the parser's own words
    candidates: tuple[str, ...] = ()


@dataclass(frozen=True)
class Given:
    """One occurrence of a flag."""

    flag: Flag
    spelled: str                # as written, without its value
    words: tuple[str, ...]
    origin: str = "argv"        # argv | config
    glued: bool = False         # --flag=value


@dataclass
class Parsed:
    given: list[Given] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    positional: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Table:
    """All flags of one release."""

    version: Version
    by_name: dict[str, Flag]
    speculative: dict[str, list[str]] = field(default_factory=dict)     # vLLM: methods, keys

    def prefixed(self, prefix: str) -> list[str]:
        return [n for n in self.by_name if n.startswith(prefix)]


@functools.cache
def _data(engine: str) -> dict:
    return json.loads((resources.files("kit.lint") / "data" / f"{engine}_flags.json").read_text())


@functools.cache
def known_versions(engine: str) -> tuple[Version, ...]:
    return tuple(parse(v) for v in _data(engine)["versions"])


@functools.cache
def table(engine: str, version: Version) -> Table:
    """The flags of a release that was read."""
    data = _data(engine)
    i = known_versions(engine).index(version)
    by_name: dict[str, Flag] = {"--help": (h := Flag(("--help", "-h"), "flag")), "-h": h}
    for row in data["flags"]:
        if row["v"][0] <= i <= row["v"][1]:
            flag = Flag(tuple(row["n"]), row["k"], row.get("a"), tuple(row.get("c") or ()), row.get("m", ""),
                        bool(row.get("r")))
            for name in flag.names:
                by_name[name] = flag
                if flag.kind == "bool" and name.startswith("--"):
                    by_name["--no-" + name[2:]] = flag
    return Table(version, by_name, data.get("speculative", {}).get(data["versions"][i], {}))


def read(argv: list[str], flags: Table, origin: str = "argv", positionals: int = 0) -> Parsed:
    """Every flag, complaint and stray word of `argv`. Never raises on any text.

    positionals  how many bare words the command takes (vLLM's model)
    """
    out = Parsed()
    i = 0
    while i < len(argv):
        word = argv[i]
        i += 1
        if word == "--":                            # everything after it is positional
            out.positional += argv[i:] if positionals else argv[i - 1:]
            break
        name, explicit, problem = _option(word, flags)
        if problem:
            out.problems.append(problem)
        if name is None:
            if not problem:
                out.positional.append(word)
            while problem and i < len(argv) and not _looks_like_option(argv[i], flags):
                i += 1                              # the value of a flag that could be any of several
            continue
        flag = flags.by_name.get(name)
        if flag is None:                            # unknown flag; its values become stray words
            start = i
            while i < len(argv) and not _looks_like_option(argv[i], flags):
                i += 1
            out.problems.append(Problem("unknown", name, f"unrecognized arguments: {' '.join([word, *argv[start:i]])}"))
            continue
        words: list[str] = []
        if explicit is not None:
            if flag.kind in VALUELESS:
                out.problems.append(Problem("explicit", name, f"argument {'/'.join(flag.names)}: "
                                            f"ignored explicit argument {explicit!r}"))
                continue
            words = [explicit]
            if isinstance(flag.nargs, int) and flag.nargs > 1:
                out.problems.append(_short(flag, name))
                continue
        elif flag.kind not in VALUELESS:
            most = {"+": len(argv), "*": len(argv), "?": 1, None: 1}.get(flag.nargs, flag.nargs)
            while i < len(argv) and len(words) < most and argv[i] != "--" and not _looks_like_option(argv[i], flags):
                words.append(argv[i])
                i += 1
            least = {"+": 1, "*": 0, "?": 0, None: 1}.get(flag.nargs, flag.nargs)
            if len(words) < least:
                out.problems.append(_short(flag, name))
                continue
        if flag.kind == "gone":
            out.problems.append(Problem("gone", name, flag.message or f"{name} is gone"))
            continue
        bad = next((p for p in (_bad_value(flag, name, w) for w in words) if p), None)
        if bad:
            out.problems.append(bad)
        out.given.append(Given(flag, word.split("=", 1)[0] if explicit is not None else word, tuple(words), origin,
                               explicit is not None))
    for stray in out.positional[positionals:]:
        out.problems.append(Problem("unknown", stray, f"unrecognized arguments: {stray}"))
    return out


def _option(word: str, flags: Table) -> tuple[str | None, str | None, Problem | None]:
    """(flag name or None for a plain word, explicit value, complaint), as argparse classifies a word."""
    if not word.startswith("-") or len(word) == 1:
        return None, None, None
    if word in flags.by_name:
        return word, None, None
    head, eq, tail = word.partition("=")
    explicit = tail if eq else None
    if eq and head in flags.by_name:
        return head, explicit, None
    if word.startswith("--"):
        matches = flags.prefixed(head)
    else:                                           # -tp8: one-letter flags with the value glued on
        matches = [n for n in flags.by_name if n == word[:2] or n.startswith(head)]
    distinct = sorted(matches)
    if len(distinct) > 1:
        return None, None, Problem("ambiguous", head, f"ambiguous option: {word} could match {', '.join(matches)}",
                                   tuple(distinct))
    if distinct:
        if not word.startswith("--") and distinct[0] == word[:2]:
            return distinct[0], word[2:] or None, None
        return distinct[0], explicit, None
    if NEGATIVE.match(word) or " " in word:
        return None, None, None
    return head, explicit, None


def _looks_like_option(word: str, flags: Table) -> bool:
    name, _, problem = _option(word, flags)
    return word == "--" or name is not None or problem is not None


def _short(flag: Flag, name: str) -> Problem:
    wants = {"+": "at least one argument", None: "one argument"}.get(flag.nargs, f"{flag.nargs} arguments")
    return Problem("missing-value", name, f"argument {'/'.join(flag.names)}: expected {wants}")


def _bad_value(flag: Flag, name: str, word: str) -> Problem | None:
    label = f"argument {'/'.join(flag.names)}"
    value = convert(flag.kind, word)
    if value is None:
        kind = {"size": "human_readable_int", "json": "loads"}.get(flag.kind, flag.kind)
        return Problem("value", name, f"{label}: invalid {kind} value: {word!r}")
    if flag.choices and value not in flag.choices:
        return Problem("choice", name, f"{label}: invalid choice: {value!r} "
                       f"(choose from {', '.join(repr(c) for c in flag.choices)})", tuple(map(str, flag.choices)))
    return None


def convert(kind: str, word: str):
    """The typed value, or None where the engine's converter would raise."""
    try:
        match kind:
            case "int":
                return int(word) if len(word) < 400 else None
            case "float":
                return float(word)
            case "size":
                match = re.fullmatch(r"\s*(-?\d+(?:\.\d+)?)([kKmMgGtT]?)\s*", word[:64])
                return float(match[1]) if match else ("auto" if word == "auto" else None)
            case "json":
                json.loads(word)
                return word
    except (ValueError, RecursionError):
        return None
    return word
