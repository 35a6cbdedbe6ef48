"""Flags of a command, one group each, under the name that its release's own table has for them. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kit.lint.flags import Table, known_versions, read, table
from kit.lint.versions import neighbours, parse

# llama-server's, as far as the kit has a term for them; the launcher of the kit knows the same names.
LLAMA = {"--model": "-m", "--host": "", "--port": "", "--alias": "-a", "--ctx-size": "-c", "--parallel": "-np",
         "--threads": "-t", "--model-draft": "-md --spec-draft-model", "--spec-type": "",
         "--spec-draft-n-max": "--draft-max --draft --draft-n", "--spec-ngram-simple-size-n": "",
         "--spec-ngram-simple-size-m": "", "--metrics": "", "--api-key": "", "--api-key-file": ""}
LLAMA_NAMES = {alias: name for name, others in LLAMA.items() for alias in (name, *others.split())}
OPTION = re.compile(r"^(--[A-Za-z]|-[A-Za-z])")


@dataclass(frozen=True)
class Group:
    """One flag with its values, as written. name: "" where the release does not know it."""

    name: str
    words: tuple[str, ...]
    values: tuple[str, ...] = ()


def flag_table(engine: str, version: str | None) -> Table:
    """The flags of that release, of the one before it that was read, or of the newest."""
    known = known_versions(engine)
    release = parse(version or "")
    return table(engine, (neighbours(release, list(known))[0] if release else None) or known[-1])


class Flags:
    """All flags of a command; taking one removes it, what is left stays as it was written.

    >>> flags = Flags("sglang", "0.5.12", ["--tp", "8", "--trust-remote-code"])
    >>> flags.take("--tp-size"), flags.left
    ('8', ('--trust-remote-code',))
    """

    def __init__(self, engine: str, version: str | None, argv: Sequence[str]):
        self.table = None if engine == "llamacpp" else flag_table(engine, version)
        self.groups = [self._known(words) for words in _split(argv)]

    def canonical(self, name: str) -> str:
        """The release's name for a flag; "" where it has none."""
        if self.table is None:
            return LLAMA_NAMES.get(name, "")
        flag = self.table.by_name.get(name)
        return flag.name if flag else ""

    def _known(self, words: tuple[str, ...]) -> Group:
        if self.table is None:
            flag, equals, value = words[0].partition("=")
            return Group(self.canonical(flag), words, (value,) if equals else words[1:])
        got = read(list(words), self.table, positionals=len(words))
        if len(got.given) != 1 or got.problems or got.positional:
            return Group("", words)
        given = got.given[0]
        negated = given.flag.kind == "bool" and given.spelled.startswith("--no-")
        return Group("" if negated else given.flag.name, words, given.words)

    def take(self, name: str) -> str | None:
        """The value in force (the last one; "" of a flag without value), removed with all that it overrides."""
        canonical = self.canonical(name)
        found = [g for g in self.groups if canonical and g.name == canonical]
        self.groups = [g for g in self.groups if g not in found]
        return None if not found else found[-1].values[-1] if found[-1].values else ""

    def look(self, name: str) -> str | None:
        canonical = self.canonical(name)
        found = [g for g in self.groups if canonical and g.name == canonical]
        return None if not found else found[-1].values[-1] if found[-1].values else ""

    def restore(self, name: str, value: str) -> None:
        """Back among what is left: the config has no field that could hold it."""
        words = (name, value) if value else (name,)
        self.groups.append(Group(self.canonical(name), words, words[1:]))

    @property
    def left(self) -> tuple[str, ...]:
        return tuple(word for g in self.groups for word in g.words)


def _split(argv: Sequence[str]) -> list[tuple[str, ...]]:
    """Each flag with the words after it; a leading bare word (vLLM's model) is a group of its own."""
    groups: list[list[str]] = []
    for word in argv:
        if OPTION.match(word) or not groups:
            groups.append([word])
        else:
            groups[-1].append(word)
    return [tuple(g) for g in groups]
