"""The parts of an adopted experiment, from what was found; what is left out on the way is said. Pure."""

from __future__ import annotations

import posixpath
import re
import shlex
from dataclasses import replace
from typing import Any

from kit.attach import answers
from kit.attach.found import ENGINE_VARIABLES, Found
from kit.attach.launched import Launched, launched, serves
from kit.attach.readings import Reading, whole
from kit.errors import SpecError
from kit.findings import Finding
from kit.masking import masked_words, secret_variable
from kit.spec import NAME, Experiment

RELEASE = re.compile(r"^\d+(\.\d+){1,3}([.-]?(post|rc|dev|a|b)\d+)*")
HUB = re.compile(r"^[A-Za-z0-9][\w.-]*/[\w.-]+$")
PORTS = {"sglang": 30000, "llamacpp": 8080, "vllm": 8000}       # where none is stated
SYSTEMD_STOP_S = 90         # systemd's own, where TimeoutStopSec= is not stated
RESTARTS = ("always", "on-failure", "on-abnormal", "on-abort", "on-watchdog")


def command(found: Found, said: list[Finding]) -> tuple[Launched, tuple[str, ...]]:
    """What runs now, else what the unit would start, else what the server says of itself; and its words."""
    tried: list[SpecError] = []
    runs = (found.process.argv,) if found.process and found.process.argv else ()
    wants = found.unit.commands if found.unit else ()
    seen: list[tuple[Launched, tuple[str, ...]]] = []
    for argv in (*runs, *wants):
        try:
            seen.append((launched(argv), argv))
        except SpecError as e:
            tried.append(e)
    if seen:
        first = seen[0]
        if runs and first[1] == runs[0] and len(seen) > 1 and seen[-1][0].flags != first[0].flags:
            said.append(Finding("adopt-changed", "warn", "the unit names other flags than the process runs with",
                                "it was changed after the start; what runs now is what was adopted",
                                "its owner restarts it, then adopt it again"))
        if runs and seen[-1][0].launch and not first[0].launch:         # numactl has exec'ed itself away
            first = (replace(first[0], launch=seen[-1][0].launch), first[1])
        return first
    engine = answers.engine_of(found.info)
    if engine:
        words = tuple(answers.argv_of(found.info))
        said.append(Finding("adopt-from-answer", "warn", "the command is from the server's own answer",
                            "its values are as resolved, not as written; its process could not be read",
                            "adopt it by its unit, or connect as its user"))
        return Launched(engine, words), words
    raise tried[0] if tried else SpecError("nothing says what runs there", where=f"{found.host}: {found.where}",
                                           next="name the unit, or a pid that may be read; is the server up?")


def release(found: Found, said: list[Finding]) -> str | None:
    told = found.info.get("version") or found.version
    match = RELEASE.match(str(told)) if told else None
    if match is None:
        said.append(Finding("adopt-version", "unknown", f"its release is not known ({told or 'nothing tells it'})",
                            "flags are read as those of the newest release that was read",
                            "set engine.version, as pip names it"))
    return match[0] if match else None


def environment(found: Found, started: Launched) -> tuple[dict[str, str], list[str]]:
    """(what an engine reads, names of secrets). The unit's, then what the process has beside it."""
    env = dict(found.unit.env) if found.unit else {}
    have = (found.process.environ if found.process else None) or {}
    env |= {k: v for k, v in have.items() if k in env or k.startswith(ENGINE_VARIABLES)}
    env |= started.env
    secret = [k for k, v in env.items() if secret_variable(k, v)]
    return {k: v for k, v in env.items() if k not in secret}, secret


def experiment(found: Found, started: Launched, it: Reading, env: dict[str, str], secrets: list[str],
                version: str | None, name: str, said: list[Finding]) -> Experiment:
    serve = {**it.serve, **_stated(found, started, it, said)}
    unit = found.unit
    if unit:
        serve["stop_within_s"] = min(unit.stop_s or SYSTEMD_STOP_S, 3600)
    if unit and unit.last("Service.Restart") in RESTARTS:
        serve["restart"] = True
    if unit and "Install.WantedBy" in unit.settings:
        serve["at_boot"] = True
    env = dict(env)
    threads = it.threads or whole(env.get("OMP_NUM_THREADS"))
    if threads and 1 <= threads <= 512:
        env.pop("OMP_NUM_THREADS", None)
    python = started.python
    if started.engine == "sglang" and not python.startswith("/") and "conda" not in started.launch:
        python = python or "python3"
        said.append(Finding("adopt-python", "unknown", f"its interpreter is known as {python} alone",
                            "which one that is, its own PATH tells", "set engine.python before the kit serves it "
                            "itself"))
    arm = "as-found" if it.by_hand else "baseline" if it.spec.algorithm == "none" else it.spec.algorithm
    data: dict[str, Any] = {
        "name": name or _name(found, it),
        "host": {"ssh": found.host, "root": found.root, "python": found.python, "supervisor": f"foreign:{found.where}",
                 "run_as": _user(found) if found.scope == "system" else ""},
        "engine": {"name": started.engine, "version": version, "python": python or None,
                   "threads": threads if threads and threads <= 512 else 1, "args": it.flags.left, "env": env,
                   "secrets": tuple(secrets), "launch": started.launch or None},
        "target": {"source": _source(it.target, found, it.revision, said)},
        "serve": serve, "arms": {arm: it.spec}, "arm_name": arm}
    if it.drafter:
        data["drafter"] = {"source": _source(it.drafter, found, "", said)}
    return Experiment._checked(data, f"{found.host}: {found.where}")


def _stated(found: Found, started: Launched, it: Reading, said: list[Finding]) -> dict[str, Any]:
    """Context, slots and port that the command leaves to the server, from what the server says."""
    out: dict[str, Any] = {}
    by_hand = it.flags.left
    settings = found.info.get("default_generation_settings")
    told = {"context": found.longest or (settings.get("n_ctx") if isinstance(settings, dict) else None),
            "slots": found.info.get("max_running_requests") or found.info.get("total_slots")}
    for name, flag in (("context", "--context-length"), ("slots", "--max-running-requests")):
        if name in it.serve or flag in by_hand:
            continue
        if isinstance(told[name], int) and told[name] >= (64 if name == "context" else 1):
            out[name] = min(told[name], 1024) if name == "slots" else told[name]
        else:
            said.append(Finding(f"adopt-{name}", "warn", f"serve.{name} is not stated, and the server does not tell it",
                                "the config's default stands there, which is not what the server chose",
                                f"set serve.{name} before the kit serves it itself"))
    if "port" not in it.serve or found.where.startswith("port/"):       # its own is inside, behind what passes on
        out["port"] = found.port or PORTS[started.engine]
    return out


def _name(found: Found, it: Reading) -> str:
    for wish in (it.served_as, found.unit.name.rsplit(".", 1)[0] if found.unit else "",
                 posixpath.basename(it.target.rstrip("/"))):
        slug = re.sub(r"[^a-z0-9]+", "-", wish.lower()).strip("-")[:41].rstrip("-")
        if re.match(NAME, slug) and (wish != it.served_as or wish == slug):
            return slug
    return "adopted"


def _user(found: Found) -> str:
    user = found.unit.last("Service.User", "root") if found.unit else ""
    return user if re.match(r"^[a-z_][a-z0-9_-]*$", user) else ""


def _source(path: str, found: Found, revision: str, said: list[Finding]) -> str:
    """`host:` of a path there, `hf:` of a repository's name."""
    cwd = (found.process.cwd if found.process else "") or (found.unit.last("Service.WorkingDirectory")
                                                          if found.unit else "")
    if path.startswith("/"):
        return f"host:{path}"
    if HUB.match(path) and not path.startswith("."):
        said.append(Finding("adopt-hub", "warn", f"{path} is named as on the hub",
                            "the server took what its cache had, or what the hub had that day; a folder of that name "
                            "below its working folder would count before it", "pin a commit: hf:org/name@commit"))
        return f"hf:{path}@{revision or 'main'}"
    if path and cwd.startswith("/"):
        return f"host:{posixpath.normpath(posixpath.join(cwd, path))}"
    raise SpecError(f"the model {path!r} is no absolute path" if path else "the command names no model",
                    where=f"{found.host}: {found.where}", next="adopt it while it runs: its process tells where it is")


def contained(found: Found, started: Launched) -> bool:
    return started.contained or bool(found.process and found.process.container)


def noticed(found: Found, started: Launched, it: Reading, secret: list[str]) -> list[Finding]:
    """What is not carried, and what only the host can tell."""
    unit, out = found.unit, []

    def say(id: str, verdict: str, what: str, why: str = "", fix: str = "") -> None:
        out.append(Finding(id, verdict, what, why, fix))

    for flag in dict.fromkeys(it.secrets):
        say("adopt-key", "warn", f"{flag} holds a secret on the command line, and is not carried",
            "every user of that host reads it; what asks for it will refuse the kit's requests",
            "a file of mode 0600 (--config FILE), or 127.0.0.1 without a key")
    for variable in secret:
        say("adopt-secret", "warn", f"{variable} is set there; its value was not taken",
            "engine.secrets names it, so that a service of the kit gets it through a file of mode 0600",
            f"export {variable} on this machine before the kit serves it itself")
    if it.by_hand:
        say("adopt-by-hand", "warn", "its speculation fits no arm, and stays by hand in engine.args",
            "the engine renders it differently, or refuses it: see lint", "write an arm: {algorithm: eagle3, steps: 3}")
    for note in started.notes:
        say("adopt-wrapper", "warn", note, "the kit starts the server itself", "see that it needs nothing of it")
    if "--config" in it.flags.left:
        say("adopt-config-file", "unknown", "flags in its --config file were not read",
            "they count beside those of the command", "kit.lint.lint(…, config=text) judges them")
    if contained(found, started):
        say("adopt-container", "unknown", "it runs in a container: its paths are those in there, and so is its port",
            "what it is given from outside (volumes, -p, GPUs) is in the runtime, not in the command",
            "where the port differs: kit.adopt(host, url=…); name host paths before the kit serves it itself")
    if found.odd_bytes:
        say("adopt-bytes", "unknown", "some of what was read is no UTF-8, and is shown as \\xNN",
            "no config can hold such a name", "followed and measured it can be; to serve it, rename what it names")
    if unit:
        for path in unit.env_files:
            say("adopt-environment-file", "warn", f"EnvironmentFile={path} was named, not read",
                "it mostly holds secrets; of a process we may look into, what an engine reads was taken",
                "write what is no secret into engine.env")
        if found.process and not any(serves(argv) for argv in unit.commands):
            say("adopt-wrapper", "warn", "the unit starts something else, which starts the server",
                "what runs was adopted; what the script does before it is not known", "see that the server needs none "
                "of it")
        if len(unit.commands) > 1:
            say("adopt-several-commands", "warn", f"the unit has {len(unit.commands)} commands",
                "systemd takes several only with Type=oneshot; the first that starts a server was read")
        for word in unit.unknown:
            say("adopt-unknown-word", "unknown", f"{word} in the unit stands for something that only the host knows",
                fix="adopt it while it runs: its process has the value")
    if found.state.get("NeedDaemonReload") == "yes":
        say("adopt-reload", "warn", "the unit's file was changed after systemd read it", "what was read is the file",
            "systemctl daemon-reload, by its owner")
    if found.status in (401, 403):
        say("adopt-asks-key", "warn", "the server answers only with a key, and the kit has none of it",
            "it can be followed, not measured", "its owner can let 127.0.0.1 in without one")
    elif found.status is not None and not found.info:
        say("adopt-no-answer", "unknown", f"port {it.serve.get('port') or found.port} tells nothing of the server (" +
            (f"HTTP {found.status}" if found.status else "no answer") + ")",
            "it is loading, hangs, or is another program: only its command is known", "adopt it again once it answers")
    if found.process and found.process.environ is None:
        say("adopt-environment", "unknown", f"the environment of pid {found.process.pid} may not be read",
            "variables from its login or an EnvironmentFile are missing", "connect as its user, or as root")
    return out


def shown(found: Found, started: Launched, argv: tuple[str, ...], env: dict[str, str], secret: list[str]) -> str:
    """One unit text for a reader and for lint: the command that was adopted, secrets masked."""
    if not started.program:
        argv = ("python3", "-m", "sglang.launch_server", *argv) if started.engine == "sglang" else argv
    rows = [f"Environment={shlex.quote(f'{k}={v}')}" for k, v in env.items() if k not in started.env]
    rows += [f"Environment={k}=***" for k in secret]
    user = found.unit.last("Service.User") if found.unit and found.scope == "system" else ""
    if found.process and not user:
        user = found.process.user
    return "\n".join(["[Service]", *([f"User={user}"] if user else []), *rows,
                      f"ExecStart={shlex.join(masked_words(argv))}", ""])
