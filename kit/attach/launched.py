"""An argv as it runs → which engine, whose interpreter, what goes before it, and its flags. Pure."""

from __future__ import annotations

import os.path
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from kit.errors import SpecError
from kit.launch import ACTIVATE, Numactl
from kit.lint.pasted import ASSIGNMENT, unwrap
from kit.masking import masked_words

LLAMA = ("llama-server", "llamacpp_server.py")
CONTAINERS = ("docker", "podman", "nerdctl")
SHELLS = ("sh", "bash", "dash", "zsh")
PYTHON = re.compile(r"^(python|pypy)[0-9.]*$")
NUMACTL = {"-N": "cpunodebind", "--cpunodebind": "cpunodebind", "-m": "membind", "--membind": "membind"}


@dataclass(frozen=True)
class Launched:
    """flags    what follows the launcher
    python   the interpreter, as written; "" where there is none (llama-server)
    launch   fields of `kit.launch.Launch`
    notes    what stands before the server and is not carried
    contained  a container runtime starts it
    """

    engine: str
    flags: tuple[str, ...]
    python: str = ""
    program: str = ""
    env: dict[str, str] = field(default_factory=dict)
    launch: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    contained: bool = False


def launched(argv: Sequence[str]) -> Launched:
    """Takes a command apart. SpecError where no server of a known engine is in it.

    >>> launched(["/v/bin/python", "-m", "sglang.launch_server", "--port", "1"]).python
    '/v/bin/python'
    """
    words, conda, notes = list(argv), "", []
    if len(words) > 6 and words[2] == ACTIVATE:             # as the kit writes a conda environment
        conda, words = words[5], words[6:]
    shell = _script(words)
    if shell is not None:
        notes.append(f"a shell starts it: {' '.join(masked_words(words[:2]))}")
        words = shell
    found = unwrap(words)
    head, engine, flags = words[:len(words) - len(found.argv)], found.engine, found.argv
    if not engine:
        at = next((i for i, w in enumerate(words) if os.path.basename(w) in LLAMA), None)
        if at is None:
            raise SpecError(f"no inference server in: {' '.join(masked_words(words))[:200]}",
                            next="SGLang, vLLM and llama.cpp are known; a wrapper's own child can be named by its pid")
        head, engine, flags = words[:at + 1], "llamacpp", tuple(words[at + 1:])
    env, rest = _environment(head)
    python, before = _python(rest)
    activated = [w for w in words if w.endswith("/bin/activate")]
    if activated and "/" not in python:                     # the shell has put that environment first
        python = os.path.join(os.path.dirname(activated[-1]), "python")
    launch, left = _before(before)
    if conda or launch.get("conda"):
        launch["conda"] = conda or launch["conda"]
    notes += [f"not carried, what stands before the server: {' '.join(masked_words(left))}"] if left else []
    contained = any(os.path.basename(w) in CONTAINERS for w in left)
    return Launched(engine, tuple(flags), python, _program(rest), env, launch, tuple(notes), contained)


def serves(argv: Sequence[str]) -> bool:
    """Whether a known server is in it."""
    try:
        return bool(launched(argv))
    except SpecError:
        return False


def _script(words: list[str]) -> list[str] | None:
    """The words of `bash -c "…"`; None where no shell starts it."""
    if not words or os.path.basename(words[0]) not in SHELLS:
        return None
    for i, word in enumerate(words[1:-1], 1):
        if re.fullmatch(r"-[a-z]*c", word):
            try:
                return shlex.split(re.sub(r"\\\r?\n", " ", words[i + 1]))
            except ValueError as e:
                raise SpecError(f"what the shell is told cannot be read: {e}", next="name the server by its pid") \
                    from None
    return None


def _environment(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """`env A=b C=d` and assignments of a shell, taken out."""
    env: dict[str, str] = {}
    rest: list[str] = []
    for word in words:
        found = ASSIGNMENT.match(word)
        if found:
            env[found[1]] = found[2]
        elif not (os.path.basename(word) == "env" and not rest):
            rest.append(word)
    return env, rest


def _python(words: list[str]) -> tuple[str, list[str]]:
    """(interpreter, what stands before it); a console script has the interpreter beside it."""
    at = next((i for i in range(len(words) - 1, -1, -1) if PYTHON.match(os.path.basename(words[i]))), None)
    if at is not None:
        return words[at], words[:at]
    last = len(words) - (2 if words[-1:] == ["serve"] else 1)
    folder = os.path.dirname(words[last]) if words else ""
    if not words or os.path.basename(words[last]) == "llama-server":
        return "", words[:last]
    return f"{folder}/python" if folder else "", words[:last]


def _program(words: list[str]) -> str:
    """As a reader would name it: -m sglang.launch_server, vllm serve, llama-server."""
    tail = words[-2:] if len(words) > 1 and (words[-2] == "-m" or words[-1] == "serve") else words[-1:]
    return " ".join(os.path.basename(w) if "/" in w else w for w in tail)


def _before(words: list[str]) -> tuple[dict[str, Any], list[str]]:
    """numactl and `conda run` as `Launch` has them; what is left over."""
    launch: dict[str, Any] = {}
    left: list[str] = []
    i = 0
    while i < len(words):
        base = os.path.basename(words[i])
        if base == "numactl":
            nodes, end = _options(words, i + 1, NUMACTL)
            if _has_fields_for(words[i + 1:end], nodes):
                launch["numactl"] = nodes
            else:
                left += words[i:end]
            i = end
        elif base in ("conda", "mamba", "micromamba") and words[i + 1:i + 2] == ["run"]:
            installed = os.path.dirname(os.path.dirname(words[i]))
            named, i = _options(words, i + 2, {"-n": "name", "--name": "name", "-p": "folder", "--prefix": "folder"})
            launch["conda"] = named.get("folder") or f"{installed}/envs/{named.get('name', 'base')}"
        elif base in ("exec", "nohup", "setsid", "env"):
            i += 1
        else:
            left.append(words[i])
            i += 1
    return launch, left


def _has_fields_for(options: list[str], nodes: dict[str, str]) -> bool:
    """Whether `Numactl` can hold all that numactl was told."""
    try:
        Numactl(**nodes)
    except ValidationError:
        return False
    return all(word.partition("=")[0] in NUMACTL for word in options if word.startswith("-"))


def _options(words: list[str], i: int, known: dict[str, str]) -> tuple[dict[str, str], int]:
    """{name: value} of the options from i on, `--a b` or `--a=b`; others are passed over. And where they end."""
    out: dict[str, str] = {}
    while i < len(words) and words[i].startswith("-"):
        name, equals, value = words[i].partition("=")
        i += 1
        if name in known:
            if not equals and i < len(words):
                value, i = words[i], i + 1
            out[known[name]] = value
    return out, i
