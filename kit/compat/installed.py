"""Class support as the engine on the host has it: read from its source, in one round trip."""

from __future__ import annotations

from dataclasses import dataclass

from kit.compat.classes import Support, from_answer, question
from kit.compat.pair import Engine
from kit.errors import HostError
from kit.findings import Finding
from kit.lint.versions import parse
from kit.seams import Host


@dataclass(frozen=True)
class Installed:
    """engine as it is to be named to `check_pair`; support None where only the table is left; findings say which."""

    engine: str
    support: Support | None = None
    findings: tuple[Finding, ...] = ()


def read_installed(host: Host, engine: str, python: str = "python3") -> Installed:
    """Asks `python` on `host` for the classes of `engine` ("sglang", "sglang==0.5.12").

    >>> there = read_installed(host, "sglang", "/opt/sglang/bin/python")
    >>> check_pair(target, drafter, engine=there.engine, support=there.support, algorithm="EAGLE3")
    """
    asked = Engine.parse(engine)
    if asked.name not in ("sglang", "vllm"):
        return Installed(engine)

    def say(verdict: str, what: str, why: str = "", fix: str = "") -> tuple[Finding, ...]:
        return (Finding("engine-source", verdict, what, why, fix, host.name),)

    try:
        answer = host.run(question(asked.name, python)).check("reading the engine's source")
        support, version = from_answer(answer.stdout, where=host.name)
    except HostError as e:
        return Installed(engine, None, say("unknown", "the installed engine could not be read; the table is used",
                                           e.what, e.next))
    named = f"{asked.name}=={version}" if version else engine
    if asked.version and version and parse(version) != asked.version:
        return Installed(named, support, say("warn", f"{named} is installed, {engine} was asked for",
                                             "judged by what is installed", "name the python of the release to serve"))
    return Installed(named, support, say("pass", f"{len(support.classes)} classes read from the {support.source}"))
