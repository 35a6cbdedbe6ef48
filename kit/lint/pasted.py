"""Takes a command as people have it: a unit file, an ExecStart line, a shell line, or bare flags."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field

ASSIGNMENT = re.compile(r"^([A-Za-z_][A-Za-z0-9_]*)=(.*)$", re.S)
IMAGE = re.compile(r"(^|/)vllm/vllm-openai(:|@|$)|(^|/)vllm-openai:")   # its entry point is the server
SHELL = re.compile(r"(\d?|&)>{1,2}|<|\||&{1,2}$|;$")
MODULES = {"sglang.launch_server": "sglang", "vllm.entrypoints.openai.api_server": "vllm"}


@dataclass(frozen=True)
class Pasted:
    """argv: what follows the launcher. launcher: as written, "" for bare flags.

    user: the unit's User= ("root" where a unit has none), None when not a unit.
    """

    argv: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    engine: str = ""
    launcher: str = ""
    user: str | None = None
    unreadable: str = ""        # why the text could not be split into words


def unwrap(words: list[str]) -> Pasted:
    """Launcher, environment and flags of a pasted command.

    >>> unwrap(["OMP_NUM_THREADS=8 python3 -m sglang.launch_server --port 1"]).argv
    ('--port', '1')
    """
    env: dict[str, str] = {}
    user = None
    if len(words) == 1 and re.search(r"\s", words[0]):
        text = re.sub(r"\\\r?\n[ \t]*", " ", words[0]).strip()
        if re.search(r"^\s*(ExecStart|\[Service\]|Environment)\b", text, re.M):
            text, env, user = _unit(text)
        try:
            words = _one_command(shlex.split(text, comments=False))
        except ValueError as e:
            return Pasted((), env, user=user, unreadable=str(e))
    words = [w for w in words if w not in ("\\", "\n")]
    words, prefix_env = _environment(words)
    start, engine = _launcher(words)
    for option, word in zip(words[:start], words[1:start], strict=False):     # docker run -e A=b
        if option in ("-e", "--env") and (match := ASSIGNMENT.match(word)):
            prefix_env[match[1]] = match[2]
    return Pasted(tuple(words[start:]), env | prefix_env, engine, " ".join(words[:start]), user)


def _unit(text: str) -> tuple[str, dict[str, str], str | None]:
    env: dict[str, str] = {}
    command, user = "", None
    for line in text.splitlines():
        key, _, value = line.strip().partition("=")
        if key == "ExecStart" and value.strip():
            command = value.strip().lstrip("@-:+!")
        elif key == "User":
            user = value.strip()
        elif key == "Environment":
            try:
                parts = shlex.split(value)
            except ValueError:
                parts = value.split()
            env |= {m[1]: m[2] for p in parts if (m := ASSIGNMENT.match(p))}
    if user is None and re.search(r"^\s*\[Service\]", text, re.M):
        user = "root"           # systemd's default for a system unit
    return command, env, user


def _environment(words: list[str]) -> tuple[list[str], dict[str, str]]:
    """`A=b env C=d sudo nohup …` before the program."""
    env: dict[str, str] = {}
    i = 0
    while i < len(words):
        match = ASSIGNMENT.match(words[i])
        if match:
            env[match[1]] = match[2]
        elif words[i] not in ("env", "sudo", "exec", "nohup", "export", "time", "$"):
            break
        i += 1
    return words[i:], env


def _one_command(words: list[str]) -> list[str]:
    """Up to the redirection, pipe or & after the launcher; what stands before it (`cd x &&`) does no harm.

    >>> _one_command(["vllm", "serve", "m", ">", "log", "2>&1", "&"])
    ['vllm', 'serve', 'm']
    """
    start, _ = _launcher(words)
    return words[:next((i for i in range(start, len(words)) if SHELL.match(words[i])), len(words))]


def _launcher(words: list[str]) -> tuple[int, str]:
    """(index of the first flag, engine) after `python -m sglang.launch_server`, `vllm serve`, …

    A lone `serve MODEL` is a launcher of either engine, and so is an image whose entry point is one.
    """
    for i, word in enumerate(words):
        previous = words[i - 1] if i else ""
        base = word.rsplit("/", 1)[-1]
        if previous == "-m" and word in MODULES:
            return i + 1, MODULES[word]
        if word == "serve" and previous.rsplit("/", 1)[-1] in ("sglang", "vllm"):
            return i + 1, previous.rsplit("/", 1)[-1]
        if base == "launch_server.py":
            return i + 1, "sglang"
        if base == "api_server.py":
            return i + 1, "vllm"
        if IMAGE.search(word) and not any(w in ("serve", "-m") for w in words[i + 1:i + 4]):
            return i + 1, "vllm"
    if words[:1] == ["serve"]:
        return 1, ""
    return 0, ""
