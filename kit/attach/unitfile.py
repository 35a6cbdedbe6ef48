"""A systemd unit's text → what it starts: argv, environment, user, files. Pure.

After man systemd.syntax, systemd.service and systemd.exec: comments, continued lines, an empty assignment that
resets, quotes and C escapes, `%` specifiers, `$` variables, several commands, drop-ins. What only the host knows
(a specifier, an EnvironmentFile's content) is named in `unknown` and `env_files`, not guessed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from kit.errors import SpecError

ESCAPE = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "\\": "\\", '"': '"',
          "'": "'", "s": " "}
NUMBERED = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{3})")
ALONE = re.compile(r"(\\)?;(?=[ \t\r\n]|$)")
END = "\0"                 # between two commands of a line; no word can hold it
PREFIXES = "@-:+!|"
BLANK = " \t\r\n"          # of systemd; what Unicode takes for a blank is a letter here
VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
VARIABLE = re.compile(r"\$\$|\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
SPAN = {"": 1.0, "s": 1.0, "sec": 1.0, "ms": 0.001, "m": 60.0, "min": 60.0, "h": 3600.0, "hr": 3600.0}


@dataclass(frozen=True)
class UnitFile:
    """What a unit says, drop-ins applied.

    settings     {"Service.User": ("model",)}: every assignment in force, lists in order
    commands     argv of each ExecStart=
    env_files    of EnvironmentFile=, with its leading "-" where it may be missing: named, never read here
    unknown      specifiers and variables that only the host can tell
    """

    name: str
    settings: dict[str, tuple[str, ...]] = field(repr=False)
    commands: tuple[tuple[str, ...], ...]
    env: dict[str, str] = field(default_factory=dict, repr=False)
    env_files: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    def last(self, key: str, default: str = "") -> str:
        return self.settings.get(key, (default,))[-1]

    @property
    def stop_s(self) -> float | None:
        """TimeoutStopSec= in seconds; None where it is not stated, or infinite."""
        return seconds(self.last("Service.TimeoutStopSec", self.last("Service.TimeoutSec")))


def parse(texts: str | Sequence[str], name: str = "", manager: tuple[str, str] = ("root", "/root")) -> UnitFile:
    """A unit's file and its drop-ins, in the order systemd applies them.

    name      e.g. "sglang@0.service": what %n, %p and %i stand for
    manager   (user, home folder) of the systemd that runs it: %u and %h, whatever User= says
    Raises SpecError where systemd itself could not read it.

    >>> parse("[Service]\\nExecStart=/bin/echo 100%%").commands
    (('/bin/echo', '100%'),)
    """
    settings: dict[str, tuple[str, ...]] = {}
    for text in [texts] if isinstance(texts, str) else texts:
        for key, value in assignments(text):
            if value:
                settings[key] = (*settings.get(key, ()), value)
            else:
                settings.pop(key, None)             # an empty assignment forgets those before it
    said = Specifiers(name, manager)
    env: dict[str, str] = {}
    for value in settings.get("Service.Environment", ()):
        for word in words(value, name):
            variable, equals, content = said.replaced(word).partition("=")
            if equals and VARIABLE_NAME.fullmatch(variable):     # systemd passes over what is no name
                env[variable] = content
    for value in settings.get("Service.UnsetEnvironment", ()):
        for word in words(value, name):
            env.pop(word, None)
    files = tuple(said.replaced(v.strip('"')) for v in settings.get("Service.EnvironmentFile", ()))
    commands = [c for v in settings.get("Service.ExecStart", ()) for c in _commands(v, env, said, name)]
    return UnitFile(name, settings, tuple(commands), env, files, tuple(dict.fromkeys(said.unknown)))


def assignments(text: str) -> list[tuple[str, str]]:
    """("Section.Key", value) of every line, continued ones joined; comments between them are passed over."""
    out: list[tuple[str, str]] = []
    section, held = "", ""
    for line in text.removeprefix("\ufeff").split("\n"):
        line = line.rstrip("\r")
        if line.lstrip(BLANK).startswith(("#", ";")):
            continue
        line = held + (line.lstrip(BLANK) if not held else line)
        if line.endswith("\\"):
            held = line[:-1] + " "
            continue
        held, line = "", line.strip(BLANK)
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
        elif "=" in line:
            key, _, value = line.partition("=")
            out.append((f"{section}.{key.strip(BLANK)}", value.strip(BLANK)))
    return out


def words(value: str, where: str = "", commands: bool = False) -> list[str]:
    r"""Split as systemd does: quotes are removed wherever they stand, C escapes are read inside and outside of them.

    commands   a `;` that stands alone, not quoted, is `END`; a `\;` is a word

    >>> words(r'"a b" c\x20d e"f g"')
    ['a b', 'c d', 'ef g']
    """
    out: list[str] = []
    word: str | None = None
    quote, i = "", 0
    while i < len(value):
        if commands and word is None and (alone := ALONE.match(value, i)):
            out.append(";" if alone[1] else END)
            i = alone.end()
            continue
        c = value[i]
        i += 1
        if c == "\\":
            said, i = _escape(value, i)
            word = (word or "") + said
        elif quote:
            if c == quote:
                quote = ""
            else:
                word += c
        elif c in "\"'":
            quote, word = c, word or ""
        elif c in BLANK:
            if word is not None:
                out.append(_joined(word))
            word = None
        else:
            word = (word or "") + c
    if quote:
        raise SpecError(f"a quote {quote} is not closed", where=where or value[:60], next="mend the unit on the host")
    return out if word is None else [*out, _joined(word)]


def _joined(word: str) -> str:
    """Bytes that were written as escapes, put together; what is no UTF-8 then stays readable as \\xNN."""
    return word.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _escape(value: str, i: int) -> tuple[str, int]:
    """What a backslash before value[i] means, and where to go on; an unknown one stays as written."""
    if i >= len(value):
        return "\\", i
    numbered = NUMBERED.match(value, i)
    if numbered:
        byte, letter = numbered[1] or numbered[4], numbered[2] or numbered[3]
        code = int(letter, 16) if letter else int(byte, 16 if numbered[1] else 8)
        if byte and 0x80 <= code <= 0xff:
            return chr(0xdc00 + code), numbered.end()       # one byte of a letter, see _joined
        if code and code < 0x110000 and not 0xd800 <= code < 0xe000:
            return chr(code), numbered.end()
    return ESCAPE.get(value[i], "\\" + value[i]), i + 1


class Specifiers:
    """`%` in one unit; `unknown` gathers what only the host can tell."""

    def __init__(self, name: str, manager: tuple[str, str]):
        base = name.rsplit(".", 1)[0] if name else ""
        prefix, _, instance = base.partition("@")
        self.known = {"%": "%", "u": manager[0], "h": manager[1]}
        if name:
            self.known |= {"n": name, "N": base, "p": prefix, "i": instance, "I": _unescaped(instance)}
        self.unknown: list[str] = []

    def replaced(self, word: str) -> str:
        def one(found: re.Match[str]) -> str:
            if found[1] not in self.known:
                self.unknown.append(found[0])
            return self.known.get(found[1], found[0])
        return re.sub(r"%([A-Za-z%])", one, word)


def _unescaped(name: str) -> str:
    """As systemd-escape --unescape: - is /, and \\xNN a byte."""
    return _joined(re.sub(r"\\x([0-9a-f]{2})", lambda found: _escape(found[0][1:], 0)[0], name.replace("-", "/")))


def _commands(value: str, env: dict[str, str], said: Specifiers, name: str) -> list[tuple[str, ...]]:
    """argv of one ExecStart= line; `;` as a word of its own separates several."""
    value, marks = value.lstrip(BLANK), ""
    while value and value[0] in PREFIXES:
        marks, value = marks + value[0], value[1:].lstrip(BLANK)
    out: list[list[str]] = [[]]
    for word in words(value, name, commands=True):
        if word == END:
            out.append([])
            continue
        word = said.replaced(word)
        out[-1] += [word] if ":" in marks or not out[-1] else _expanded(word, env, said)
    if "@" in marks and len(out[0]) > 1:
        del out[0][1]                               # the second word is the name the program is told, argv[0]
    return [tuple(c) for c in out if c]


def _expanded(word: str, env: dict[str, str], said: Specifiers) -> list[str]:
    """`$NAME` as a whole word becomes none, one or several; `${NAME}` inside a word stays one."""
    def value(found: re.Match[str]) -> str:
        if found[0] == "$$":
            return "$"
        if found[1] not in env:
            said.unknown.append(found[0])
        return env.get(found[1], found[0])

    alone = re.fullmatch(r"\$([A-Za-z_][A-Za-z0-9_]*)", word)
    if alone and alone[1] in env:
        return words(env[alone[1]])
    if alone:
        said.unknown.append(word)
    return [VARIABLE.sub(value, word)]


def seconds(span: str) -> float | None:
    """A time span of systemd, `90`, `1min 30s`; None for infinity, and for what is none."""
    parts = re.findall(r"([\d.]+)\s*([a-z]*)", span)
    if not parts or "infinity" in span or any(unit not in SPAN for _, unit in parts):
        return None
    try:
        return sum(float(number) * SPAN[unit] for number, unit in parts)
    except ValueError:
        return None
