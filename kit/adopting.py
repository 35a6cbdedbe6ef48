"""Reads somebody's service on a host, so that it can be checked, followed and measured. Changes nothing there."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from kit.attach import Adopted, Asked, Found, Process, adopted, asked
from kit.attach.found import ENGINE_VARIABLES
from kit.attach.launched import launched, serves
from kit.attach.unitfile import parse
from kit.command import sh
from kit.engines import service
from kit.errors import CommandTimeout, ParseError, PlanError, SpecError
from kit.masking import masked
from kit.seams import Host
from kit.spec import Experiment
from kit.supervisors.foreign import UNIT, Foreign

HERE = ("127.0.0.1", "localhost", "0.0.0.0", "::1", "::", "")
ANSWERS = {"sglang": ("/get_server_info",), "llamacpp": ("/props",), "vllm": ("/version",),
           "": ("/get_server_info", "/props")}
ANSWER_S = 5.0              # a server that hangs is told, not waited for
# What pip noted beside the package. Nothing of theirs is run, which may be another user's: we may be root.
RELEASE = """for lib in "$1"/lib "$1"/local/lib; do for found in "$lib"/python3*/*-packages/"$2"-*.dist-info; do
[ ! -d "$found" ] || basename "$found" .dist-info; done; done"""


def adopt(host: Host, unit: str = "", *, pid: int | None = None, url: str = "", scope: str = "system",
          name: str = "", python: str = "python3") -> Adopted:
    """A service that is not ours as an `Experiment`: from its unit's text, its process and its own answer.

    unit, scope   a systemd unit, of the system or of the login user ("user")
    pid           a process; the unit that was made for it is found
    url           where it answers, seen from its host: http://127.0.0.1:30000
    name          of the experiment; default: the served name, or the unit's
    python        Python >= 3.9 on the host, for the looking

    One round trip, and one for the server's own answer. Raises PlanError where there is no such service or it may not
    be read, SpecError where it is no server that a config can describe.

    >>> kit.adopt(host, "sglang-k26-eagle3.service").experiment
    """
    if sum((bool(unit), pid is not None, bool(url))) != 1:
        raise SpecError("kit.adopt takes one of: a unit, pid=, url=", next='kit.adopt(host, "x.service")')
    if scope not in ("system", "user"):
        raise SpecError(f"scope {scope!r}", where="kit.adopt", next='it is "system" or "user"')
    port = _port(url, host) if url else None
    if unit:
        full = unit if unit.endswith(".service") else f"{unit}.service"
        if not UNIT.fullmatch(full):
            raise SpecError(f"{unit[:80]!r} is no name of a service unit", next="one reads sglang.service or sglang@0; "
                            "other characters as systemd-escape writes them")
        which = (f"--unit={full}", "--scope", scope)
    else:
        which = ("--pid", str(pid)) if pid is not None else ("--port", str(port))
    found = _answered(_read(host, python, which, port), host)
    return adopted(found, name)


def unchanged(exp: Experiment, host: Host) -> str:
    """Why what runs is not what was adopted; "" where it is. PlanError where it is gone."""
    kind, _, what = exp.host.supervisor.removeprefix("foreign:").partition("/")
    which: dict[str, Any] = {"unit": what, "scope": kind} if kind in ("system", "user") else \
        {"pid": int(what.partition("-")[0])} if kind == "pid" else {"url": f"http://127.0.0.1:{what}"}
    now = adopt(host, name=exp.name, python=exp.host.python, **which)
    if now.experiment.host.supervisor != exp.host.supervisor:
        return f"{kind} {what} is {now.experiment.host.supervisor.removeprefix('foreign:')} by now"
    before, after = service(exp, host.root), service(now.experiment, host.root)
    for part in ("argv", "env"):
        if getattr(before, part) != getattr(after, part):
            fields = [f for f in exp.diff(now.experiment) if f[0].startswith(("engine.", "serve.", "arms.", "target"))]
            what = "; ".join(f"{name}: {was!r} → {is_!r}" for name, was, is_ in fields[:4])
            return f"runs with other settings than the experiment has: {what or part}"
    return ""


def _port(url: str, host: Host) -> int:
    try:
        there = urlsplit(url if "://" in url else f"http://{url}")
        name, port, port_default = there.hostname or "", there.port, {"http": 80, "https": 443}.get(there.scheme)
    except ValueError:
        raise SpecError(f"no address: {masked(url[:80])}", next="one reads http://127.0.0.1:30000") from None
    if name not in HERE and name not in (host.name, host.name.partition("@")[2].partition(":")[0]):
        raise SpecError(f"{name} is not this host: a service is read where it runs", where=host.name,
                        next=f'kit.adopt(kit.connect("{name}"), url="http://127.0.0.1:{port or port_default}")')
    if not (port or port_default):
        raise SpecError(f"no port in {masked(url[:80])}", next="one reads http://127.0.0.1:30000")
    return port or port_default


def _read(host: Host, python: str, which: tuple[str, ...], port: int | None) -> Found:
    variables = ",".join((*ENGINE_VARIABLES, "SPECBOOK_UNIT"))
    result = Foreign().explain(host.run(Foreign.program(python, "look", *which, "--variables", variables)))
    try:
        raw = json.loads(result.stdout)
        said = _readable(raw)
        unit, where = said["unit"], f"port/{port}"
        process = _server([Process(p["pid"], p["start"], tuple(p["argv"]), p["environ"], p["cwd"], p["user"],
                                   bool(p["container"])) for p in said["processes"]])
    except (ValueError, TypeError, KeyError) as e:      # what it said may hold secrets: it is not shown
        raise ParseError(f"what was read of the service was not understood ({type(e).__name__})", where=host.name,
                         next="look for a login message on stdout of a plain ssh command") from None
    closed = [f for f in unit["files"] if f[1] is None] if unit else []
    if closed and which[0].startswith("--unit"):
        raise PlanError(f"{closed[0][0]} cannot be read: {closed[0][2]}", where=host.name,
                        next="connect as a user who may, or adopt it by its pid")
    if port and not unit and process and not serves(process.argv):
        process = None                  # somebody who passes on what comes to the port: docker-proxy, nginx
    if process:
        where = f"pid/{process.pid}-{process.start}"
    parsed = None
    if unit and not closed:
        where = f"{unit['scope']}/{unit['name']}"
        manager = ("root", "/root") if unit["scope"] == "system" else (said["user"], said["home"])
        parsed = parse([text for _, text, *_ in unit["files"]], unit["name"], manager)
    return Found(host.name, host.root, where, parsed, process, port=port, user=host.user, python=python,
                 state=unit["state"] if parsed else {}, odd_bytes=said != raw)


def _readable(value: Any) -> Any:
    """Bytes that are not UTF-8 as \\xNN: neither a config nor a notebook can hold them."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    if isinstance(value, dict):
        return {_readable(k): _readable(v) for k, v in value.items()}
    return [_readable(v) for v in value] if isinstance(value, list) else value


def _server(processes: list[Process]) -> Process | None:
    """The one that serves: of itself rather than as what a script is told, nearest to the top. Else the top."""
    servers = [p for p in processes if serves(p.argv)] or processes[:1]
    return min(servers, key=lambda p: serves(p.argv) and bool(launched(p.argv).notes), default=None)


def _answered(found: Found, host: Host) -> Found:
    """With what the server says of itself, where it is up, and its release."""
    at = asked(found)
    up = found.process is not None or found.where.startswith("port/")
    info, status = {}, None
    for path in ANSWERS[at.engine] if up else ():
        info, status = _json(host, at.port, path)
        if info:
            break
    served, _ = _json(host, at.port, "/v1/models") if info else ({}, 0)
    version = info.get("version") or _release(host, at)
    port = found.port or (at.port if up else None)
    return replace(found, info=info, served=served, port=port, status=status,
                   version=version if isinstance(version, str) else None)


def _release(host: Host, at: Asked) -> str | None:
    """As pip noted it in the environment; None where it did not, or where there are several."""
    if not at.environment or at.engine == "llamacpp":
        return None
    told = set(host.run(sh(RELEASE, at.environment, at.engine)).text.split())
    return told.pop().partition("-")[2] if len(told) == 1 else None


def _json(host: Host, port: int, path: str) -> tuple[dict[str, Any], int]:
    """(the JSON object it answers, {} for anything else; the status, 0 where it gave no answer in time)."""
    try:
        answer = host.http(port, path, timeout_s=ANSWER_S)
    except CommandTimeout:
        return {}, 0
    try:
        said = json.loads(answer.body) if answer.status == 200 else {}
    except ValueError:
        said = {}
    return said if isinstance(said, dict) else {}, answer.status
