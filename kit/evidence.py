"""What a run keeps of its service beside the numbers: the unit, the arguments in force, the log meanwhile."""

from __future__ import annotations

import json
from contextlib import suppress

from kit.engines import engine, service
from kit.errors import KitError, ParseError
from kit.following import recent, state
from kit.masking import masked
from kit.seams import Host, LogLine
from kit.spec import Experiment
from kit.supervisors import supervisor

FIRST_LINES = 400       # of the service's start: arguments, memory, phases


def evidence(exp: Experiment, host: Host, since_s: float | None) -> dict[str, bytes]:
    """{file name: content} about this arm's service; what cannot be read is left out, the numbers are worth more.

    unit.txt      the unit as it is on the host (systemd), or the command with its environment
    server.json   the arguments in force and what else the server says of itself, where the engine has such an answer
    server.log    the log: its first lines, and those since `since_s` (seconds since the epoch, host's clock)

    Secrets are masked.
    """
    sup, eng = supervisor(exp.host.supervisor), engine(exp.engine.name)
    out = {"unit.txt": sup.text(service(exp, host.root), host.root, host.user)}
    with suppress(KitError):
        out["unit.txt"] = state(host, sup, exp.host.python, exp.unit).about.get("_text") or out["unit.txt"]
    with suppress(KitError):
        out["server.log"] = window(recent(host, sup, exp.host.python, exp.unit), since_s)
    if eng.info_path():
        with suppress(KitError):
            out["server.json"] = _info(exp, host, eng.info_path())
    return {name: masked(text).encode("utf-8", "surrogateescape") for name, text in out.items() if text}


def window(said: list[LogLine], since_s: float | None, first: int = FIRST_LINES) -> str:
    """The first lines, and all since then; between them, how many are left out. All of them where `since_s` is None."""
    then = [i for i, line in enumerate(said) if since_s is None or (line.time_s or 0) >= since_s]
    start = then[0] if then else len(said)
    texts = [line.text for line in said]
    gap = [f"[{start - first} lines left out]"] if start > first else []
    return "".join(f"{text}\n" for text in (*texts[:min(first, start)], *gap, *texts[start:]))


def _info(exp: Experiment, host: Host, path: str) -> str:
    answer = host.http(exp.serve.port, path)
    try:
        return json.dumps(json.loads(answer.body), indent=1)
    except ValueError:
        raise ParseError(f"{path} answered {answer.status} without JSON", where=host.name) from None
