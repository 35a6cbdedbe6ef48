"""What a regular expression spells out: texts of which every match holds at least one.

Looking for a text is a hundred times quicker than trying a pattern, and of two hundred patterns a line fits one or
none. Knows the syntax that this package's tables use, and says "" (nothing is needed) where it does not follow.
"""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

MOST = 64           # texts that one pattern may come to
_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?:|\(\?P<\w+>|\(\?|.", re.S)
_TIMES = re.compile(r"(?:[*+?]|\{\d*,?\d*\})\??")


class Item(NamedTuple):
    """char: "" where it can be many; parts: of a group, its alternatives; least: how often it must come, 2 for more."""

    char: str
    parts: list[list[Item]]
    least: int


@cache
def needed(pattern: str) -> frozenset[str]:
    """The texts; {""} where none can be told. Of those a pattern offers, the ones whose shortest is longest.

    >>> sorted(needed(r"^(?:main: )?error: (?:no|bad) \\w+"))
    ['error: bad ', 'error: no ']
    """
    parts, at = _parts(pattern, 0)
    return _of_parts(parts) if at == len(pattern) else frozenset({""})


def _parts(pattern: str, at: int) -> tuple[list[list[Item]], int]:
    """The alternatives up to the closing parenthesis, and where that stands."""
    parts: list[list[Item]] = [[]]
    while at < len(pattern) and pattern[at] != ")":
        token = _TOKEN.match(pattern, at)[0]
        at += len(token)
        item = Item("", [], 1)
        if token == "|":
            parts.append([])
            continue
        if token in ("^", "$", "\\b"):
            continue
        if token[0] == "(":
            inner, at = _parts(pattern, at)
            at += 1
            item = Item("", inner if token != "(?" else [], 1)      # a look-ahead, a flag: it spells nothing
        elif token[0] == "\\":
            item = Item("" if token[1].isalnum() else token[1], [], 1)
        elif token[0] != "[" and token != ".":
            item = Item(token, [], 1)
        times = _TIMES.match(pattern, at)
        if times:
            at += len(times[0])
            item = item._replace(least=2 if times[0][0] == "+" else 0)
        parts[-1].append(item)
    return parts, at


def _of_parts(parts: list[list[Item]]) -> frozenset[str]:
    found = frozenset().union(*map(_of_sequence, parts))
    return frozenset({""}) if "" in found or len(found) > MOST else found


def _of_sequence(items: list[Item]) -> frozenset[str]:
    choices, run = [], {""}
    for item in items:
        if item.least == 1 and item.char:
            run = {text + item.char for text in run}
            continue
        if item.least == 1 and item.parts and len(run) * len(item.parts) <= MOST:
            run = {text + _beginning(part) for text in run for part in item.parts}
            if all(one.char and one.least == 1 for part in item.parts for one in part):
                continue
        choices.append(frozenset(run))
        if item.least and item.parts:
            choices.append(_of_parts(item.parts))
        run = {item.char} if item.least else {""}
    choices.append(frozenset(run))
    return max(choices, key=lambda texts: min(map(len, texts)))


def _beginning(items: list[Item]) -> str:
    """The text that a sequence begins with."""
    text = ""
    for item in items:
        if not item.char or item.least != 1:
            break
        text += item.char
    return text
