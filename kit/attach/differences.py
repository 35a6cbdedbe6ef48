"""What the kit would render of an adopted service, held against what was found; each with its reason. Pure."""

from __future__ import annotations

from kit.attach.answers import same
from kit.attach.flags import Flags
from kit.attach.found import Found
from kit.attach.launched import Launched, launched
from kit.attach.unitfile import UnitFile, parse
from kit.engines import service
from kit.errors import SpecError
from kit.findings import Finding, Report, Verdict
from kit.masking import MASK, masked, secret_flag
from kit.spec import Experiment
from kit.supervisors.systemd import text

# flag: (its default, why the kit writes it). With the default nothing changes.
WRITTEN = {
    "--host": ("127.0.0.1", "the kit always states where it listens"),
    "--port": ("30000", "the kit always states the port"),
    "--tp-size": ("1", "the kit always states it"),
    "--served-model-name": (None, "the kit serves under the experiment's name; its own requests name no model"),
    "--alias": (None, "the kit serves under the experiment's name; its own requests name no model"),
    "--enable-metrics": (None, "the benchmark reads the counters of the metrics page"),
    "--metrics": (None, "the benchmark reads the counters of the metrics page"),
    "--context-length": ("", "the kit always states it; else the server takes the model's own, which may not fit"),
    "--ctx-size": ("", "the kit always states it"),
    "--max-running-requests": ("", "always stated: SGLang caps it at 48 with speculation, and a baseline not"),
    "--parallel": ("1", "the kit always states it"), "--threads": ("", "the kit always states it"),
}
HARMLESS = ("--served-model-name", "--alias", "--enable-metrics", "--metrics")
MODELS = ("--model-path", "--model", "--model-draft", "--speculative-draft-model-path")
VARIABLES = {
    "PATH": "the environment's own programs first: kernels are compiled with its ninja",
    "OMP_NUM_THREADS": "engine.threads; without it every process starts a thread per core",
    "XDG_CACHE_HOME": "caches go below the kit's folder, where undo finds them",
    "TRITON_CACHE_DIR": "caches go below the kit's folder, where undo finds them",
    "FLASHINFER_WORKSPACE_BASE": "caches go below the kit's folder, where undo finds them",
}
SETTINGS = {
    "Unit.Description": ("pass", "a name for readers"),
    "Unit.Documentation": ("pass", "a link for readers"),
    "Unit.After": ("pass", "order at boot alone"), "Unit.Wants": ("pass", "order at boot alone"),
    "Unit.Requires": ("warn", "the kit ties a service to no other unit"),
    "Unit.StartLimitIntervalSec": ("pass", "a unit that fails again and again is given up"),
    "Unit.StartLimitBurst": ("pass", "a unit that fails again and again is given up"),
    "Service.Type": ("pass", "exec: started means that the program runs, not only that it was forked"),
    "Service.User": ("warn", "it runs as another user: host.run_as"),
    "Service.Group": ("warn", "the user's own group; the kit writes no Group="),
    "Service.WorkingDirectory": ("warn", "the kit's services start in their user's home; paths are absolute"),
    "Service.Restart": ("warn", "on-failure where serve.restart is set, and never after a refused flag"),
    "Service.RestartSec": ("pass", "only how long a restart waits"),
    "Service.RestartPreventExitStatus": ("pass", "a flag that is refused once is refused again"),
    "Service.KillMode": ("pass", "mixed: children that outlive the server are ended too"),
    "Service.KillSignal": ("warn", "the kit ends a server with TERM"),
    "Service.TimeoutStopSec": ("pass", "serve.stop_within_s"),
    "Service.TimeoutStartSec": ("pass", "the kit waits for a generated answer itself"),
    "Service.LimitNOFILE": ("pass", "a connection is a file"),
    "Service.LimitMEMLOCK": ("pass", "NCCL and RDMA pin memory"),
    "Service.StandardOutput": ("pass", "the journal, which the kit follows by cursor"),
    "Service.StandardError": ("pass", "the journal, which the kit follows by cursor"),
    "Service.SyslogIdentifier": ("pass", "a name for readers"),
    "Service.LogRateLimitIntervalSec": ("pass", "a start says much; no line of it is dropped"),
    "Service.ExecStopPost": ("pass", "notes how it ended: systemd forgets that"),
    "Service.EnvironmentFile": ("warn", "the kit writes its own file, of mode 0600, from engine.secrets"),
    "Install.WantedBy": ("pass", "serve.at_boot"),
}
NOT_WRITTEN = "the kit writes no such setting"
LEFT_OUT = ("Service.ExecStart", "Service.Environment", "Service.UnsetEnvironment")


def differences(exp: Experiment, found: Found, started: Launched, env: dict[str, str]) -> Report:
    """Findings: pass, the same effect; warn, another effect, and why; unknown, nothing explains it."""
    title = f"{exp.unit}, rendered again"
    try:
        unit = service(exp, found.root)
    except SpecError as e:
        return Report((Finding("render", "unknown", f"it cannot be rendered again: {e.what}",
                               "so it can be followed and judged, and not served by the kit", e.next),), title)
    again = launched(unit.argv)
    out = [*_program(started, again), *_flags(exp, started, again), *_variables(env, dict(unit.env))]
    if found.unit is not None and found.scope:
        mine = parse(text(unit, found.root, found.user, found.scope), found.unit.name)
        out += _settings(found.unit, mine)
    return Report(tuple(out) or (Finding("render", "pass", "nothing differs"),), title)


def _say(name: str, verdict: Verdict, what: str, why: str) -> Finding:
    return Finding(name, verdict, masked(what), why or NOT_WRITTEN)


def _program(started: Launched, again: Launched) -> list[Finding]:
    out = []
    if started.program and started.program != again.program:
        kind: Verdict = "pass" if started.engine != "llamacpp" else "warn"
        out.append(_say("program", kind, f"{started.program} → {again.program}", "the same server, by its module"
                        if kind == "pass" else "the kit serves llama.cpp out of its own wheel: another build"))
    if started.python != again.python and started.engine != "llamacpp":
        out.append(_say("python", "warn", f"{started.python or 'not named'} → {again.python}",
                        "the interpreter beside the program" if started.python else "it is not known"))
    if started.launch != again.launch:
        out.append(_say("launch", "warn", f"{started.launch or 'nothing'} → {again.launch or 'nothing'}",
                        "what stands before the command"))
    return out


def _flags(exp: Experiment, started: Launched, again: Launched) -> list[Finding]:
    version = exp.engine.version
    table = Flags(started.engine, version, ())
    before, after = (_named(Flags(started.engine, version, one.flags)) for one in (started, again))
    why = {table.canonical(flag) or flag: (flag, *reason) for flag, reason in WRITTEN.items()}
    models = {table.canonical(flag) for flag in MODELS}
    out = []
    for flag in dict.fromkeys((*before, *after)):
        was, now = before.get(flag), after.get(flag)
        if was is not None and now is not None and same(was, now):
            continue
        known = why.get(flag)
        if now is None:
            out.append(_gone(flag, was or ""))
        elif flag in models and was is not None:
            out.append(_say(flag, "warn", f"{was} → {now}", "the kit names the copy that it fetched and checked"))
        elif known is None:
            out.append(_say(flag, "unknown", f"{was if was is not None else 'not given'} → {now or 'set'}",
                            "nothing explains it: report it"))
        else:
            kind: Verdict = "pass" if known[0] in HARMLESS or was is None and now == known[1] else "warn"
            out.append(_say(known[0], kind, f"{was if was is not None else 'not given'} → {now or 'set'}", known[2]))
    return out


def _gone(flag: str, was: str) -> Finding:
    if secret_flag(flag):
        return _say(flag, "warn", f"{MASK} → not given", "a secret on the command line is not carried")
    if MASK in masked(was):
        return _say(flag, "warn", f"{MASK} → not given", "a secret in its value is not carried")
    return _say(flag, "unknown", f"{was or 'set'} → not given", "nothing explains it: report it")


def _named(flags: Flags) -> dict[str, str]:
    """{canonical name: value}; the last of several counts, as in the engine. What is unknown stands for itself."""
    out: dict[str, str] = {}
    for group in flags.groups:
        bare = not group.words[0].startswith("-")
        name = group.name or ("--model-path" if bare else group.words[0].partition("=")[0])
        out[name] = " ".join(group.values) if group.name else " ".join(group.words if bare else group.words[1:]) \
            or group.words[0].partition("=")[2]
    return out


def _variables(before: dict[str, str], after: dict[str, str]) -> list[Finding]:
    out = []
    for name in sorted(before.keys() | after.keys()):
        was, now = before.get(name), after.get(name)
        if was != now:
            why = VARIABLES.get(name, "")
            out.append(_say(name, "pass" if why and was is None and name != "OMP_NUM_THREADS" else "warn" if why
                            else "unknown", f"{was or 'not set'} → {now or 'not set'}", why))
    return out


def _settings(theirs: UnitFile, mine: UnitFile) -> list[Finding]:
    out = []
    for key in sorted(theirs.settings.keys() | mine.settings.keys()):
        was, now = (" ".join(u.settings.get(key, ())) for u in (theirs, mine))
        if was != now and key not in LEFT_OUT and not key.startswith("X-"):
            verdict, why = SETTINGS.get(key, ("warn", f"{NOT_WRITTEN}; a drop-in of your own can add it"))
            out.append(_say(key.partition(".")[2], verdict, f"{was or 'not set'} → {now or 'not set'}", why))
    return out
