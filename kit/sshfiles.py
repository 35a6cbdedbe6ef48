"""The ssh config as ssh reads it: Includes, quotes, `~` and %-tokens in paths.

paramiko's own reader follows no `Include`, takes `~` and `%` in the middle of a
path for tokens, and half of a pair of quotes for part of a name.
"""

from __future__ import annotations

import glob
import os
from pathlib import Path

PATH_KEYS = ("identityfile", "userknownhostsfile", "globalknownhostsfile", "certificatefile")


def words(text: str) -> list[str]:
    """Split a config value as OpenSSH does: quotes, backslash, a trailing # comment.

    >>> words('"/a b\\\\"c" /d # why')
    ['/a b"c', '/d']
    """
    out: list[str] = []
    word, quote, i = None, "", 0
    while i < len(text):
        c = text[i]
        if c == "\\" and i + 1 < len(text) and (text[i + 1] in "\\\"'" or (not quote and text[i + 1] == " ")):
            i += 1
            word = (word or "") + text[i]
        elif quote:
            quote, word = ("", word) if c == quote else (quote, word + c)
        elif c in "\"'":
            quote, word = c, word or ""
        elif c.isspace():
            if word is not None:
                out.append(word)
            word = None
        elif c == "#" and word is None:
            return out
        else:
            word = (word or "") + c
        i += 1
    return out + ([word] if word is not None else [])


def quoted(path: str | Path) -> str:
    """A path as one word of an ssh config, also with spaces, quotes and %."""
    return '"' + str(path).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%") + '"'


def expand(path: str, tokens: dict[str, str]) -> str:
    """`~/` at the start and %-tokens (`%d`, `%u`, `%h` …; `%%` is a percent sign)."""
    out, i = "", 0
    while i < len(path):
        if path[i] == "%" and i + 1 < len(path):
            out += "%" if path[i + 1] == "%" else tokens.get(path[i + 1], path[i:i + 2])
            i += 1
        else:
            out += path[i]
        i += 1
    return os.path.expanduser(out)


def read_config(path: str | Path, depth: int = 0) -> str:
    """The text of a config with its `Include`s in place; "" when there is no such file.

    After an Include the enclosing Host or Match line is said again, so that what
    follows still belongs to it. Path values get a trailing comment, which keeps
    paramiko from stripping half of their quotes.
    """
    try:
        lines = Path(path).expanduser().read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except FileNotFoundError:
        return ""
    out, block = [], "Host *"
    for line in lines:
        key, _, value = line.strip().replace("=", " ", 1).replace("\t", " ", 1).partition(" ")
        key, value = key.lower(), value.strip()
        if key in ("host", "match"):
            block = line
        if key == "include" and depth < 16:
            base = Path(path).expanduser().parent
            for pattern in words(value):
                for found in sorted(glob.glob(str(base / os.path.expanduser(pattern)))):
                    out.append(read_config(found, depth + 1))
            out.append(block)
        else:
            out.append(f"{key} {value} #" if key in PATH_KEYS else line)
    return "\n".join(out) + "\n"
