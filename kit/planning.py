"""Experiment + survey → the steps that make the host as wanted. Pure.

Every step says why. When nothing differs the plan is empty and says so; stop
and undo are plans of the same kind.
"""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Literal, get_args

from kit import shipping
from kit.engines import engine, service
from kit.errors import PlanError, PortBusy, SpecError
from kit.registry import names
from kit.seams import Unit, UnitState
from kit.sharing import in_the_way, not_taken, who
from kit.spec import Checkpoint, Experiment
from kit.steps import (
    Check,
    Claim,
    DryRun,
    Fetch,
    Forget,
    Free,
    Healthy,
    Plan,
    Remove,
    Run,
    Secrets,
    Start,
    Step,
    Stop,
    Write,
)
from kit.supervisors import supervisor
from kit.supervisors.foreign import for_jobs
from kit.surveys import Survey

Want = Literal["serving", "fetched", "stopped", "removed"]


def plan(exp: Experiment, now: Survey, want: Want = "serving") -> Plan:
    """The steps from `now` to what is wanted of this arm. Pure.

    serving  this arm's service is up and healthy
    fetched  its engine and checkpoints are on the host; nothing is started
    stopped  nothing of this experiment runs
    removed  nothing of this experiment is left on the host

    Raises PortBusy when somebody else listens on the port, PlanError when the
    host cannot do it at all.
    """
    if want not in get_args(Want):
        raise PlanError(f"no plan leads to {want!r}", where=exp.name, next=f"known: {', '.join(get_args(Want))}")
    if want == "serving":
        fit(exp, now)
    return planned(exp, now, want)


def fit(exp: Experiment, now: Survey) -> None:
    """Raises PlanError where the host cannot keep a service as `host.supervisor` wants it."""
    if now.python is None and now.docker:
        raise PlanError("this host has docker and no Python: the kit does not serve from containers yet",
                        where=now.host, next="install Python 3.9 or newer and the engine on the host itself")
    if unfit := supervisor(exp.host.supervisor).unfit(now):
        raise PlanError(f"host.supervisor {exp.host.supervisor}: {unfit[0]}", where=now.host, next=unfit[1])


def planned(exp: Experiment, now: Survey, want: Want = "serving") -> Plan:
    """The plan of a host that fits; of another one, for reading only."""
    exp = for_jobs(exp)     # beside a service that is not ours the kit keeps its benchmarks, which can be undone
    if want in ("serving", "fetched"):
        there = not any(_missing(c, now) for c in _wanted(exp))
        serve = _service(exp, now) if want == "serving" else []
        judge = [*_dry_run(exp), *_check(exp)] if serve else []
        fetch = [*tools(exp, now), *_runtime(exp, now), *_checkpoints(exp, now)]
        # Before anything is written, where the models' headers can be read already.
        steps = [*judge, *fetch, *serve] if there else [*fetch, *judge, *serve]
    else:
        steps = _stops(exp, now)
        if want == "removed":
            steps += _removals(exp, now)
    return Plan(tuple(steps), exp, want)


def tools(exp: Experiment, now: Survey, extra: tuple[str, ...] = ()) -> list[Step]:
    """The kit's own programs, where they are missing or of another version."""
    if now.python is None or now.python < (3, 9):
        found = ".".join(map(str, now.python)) if now.python else "none"
        raise PlanError(f"the kit needs Python 3.9 or newer on the host; {exp.host.python} is {found}", where=now.host,
                        next="name another one in the config: host.python")
    hub = "hf" in {c.scheme for c in (exp.target, exp.drafter) if c}
    programs = (*supervisor(exp.host.supervisor).shipped, *engine(exp.engine.name).shipped, "runtime.py", "load.py",
             "fetch.py", *(("hub_fetch.py",) if hub else ()), *extra)
    return [Write(shipping.path(n, now.root), shipping.content(n),
                  "another version is there" if n in now.shipped else "the kit's own program is not there yet")
            for n in dict.fromkeys(programs) if now.shipped.get(n) != shipping.sha256(n)]


def _runtime(exp: Experiment, now: Survey) -> list[Step]:
    eng = engine(exp.engine.name)
    if exp.engine.python or not eng.packages:
        return []
    folder = eng.python(exp, now.root).rsplit("/", 2)[0]
    if folder.rsplit("/", 1)[-1] in now.engines:
        return []
    unit = Unit(f"{exp.name}-runtime", (exp.host.python, shipping.path("runtime.py", now.root), folder, *eng.packages),
                kind="job", about={"experiment": exp.name})
    return [Run(unit, f"{', '.join(eng.packages)} is not installed there yet")]


def _dry_run(exp: Experiment) -> list[Step]:
    if engine(exp.engine.name).dry_run(exp, "/") is None:
        return []
    return [DryRun(exp.unit, "the engine there reads the command and loads nothing; a launch refuses after minutes")]


def _check(exp: Experiment) -> list[Step]:
    return [Check(exp.unit, "a drafter that does not fit can run all the same, at accept length 1")] \
        if exp.spec.needs_drafter else []


def _wanted(exp: Experiment) -> list[Checkpoint]:
    return [exp.target] + ([exp.drafter] if exp.spec.needs_drafter and exp.drafter else [])


def _checkpoints(exp: Experiment, now: Survey) -> list[Step]:
    steps: list[Step] = []
    for checkpoint in _wanted(exp):
        if checkpoint.scheme not in (known := names("kit.sources")):
            raise SpecError(f"no source named {checkpoint.scheme!r}", where=checkpoint.source,
                            next=f"known: {', '.join(known)}")
        reason = _missing(checkpoint, now)
        if reason:
            steps.append(Fetch(checkpoint, f"{now.root}/models/{checkpoint.slug}", reason))
    return steps


def _missing(checkpoint: Checkpoint, now: Survey) -> str:
    """Why it must be fetched; "" when it is there as pinned."""
    if checkpoint.scheme == "host":
        return ""
    there = now.models.get(checkpoint.slug)
    if there is None:
        return "it is not on the host"
    if not there.complete:
        return f"it is incomplete there ({sum(there.sizes.values()):,} bytes so far)"
    sums = {f.get("sha256") for f in there.manifest["files"].values()}
    if checkpoint.sha256 and checkpoint.sha256 not in sums:
        return "another version is there (its sha256 is not the pinned one)"
    return now.changed.get(checkpoint.slug, "")


def _service(exp: Experiment, now: Survey) -> list[Step]:
    unit = service(exp, now.root)
    text, there = supervisor(exp.host.supervisor).text(unit, now.root, now.user), now.unit(unit.name)
    before = there.about.get("_text", "") if there else ""
    if there and (more := there.about.get("_dropins")):
        raise PlanError(f"{unit.name} has settings that the kit did not write: {', '.join(more)}", where=now.host,
                        next=f"put them into the config, then: systemctl revert specbook-{unit.name}.service")
    newer = _newer(exp, now, there)
    if there and there.running and there.digest == unit.digest and before in ("", text) and not newer:
        return []
    if there and there.result == "not-ours":
        raise PlanError(there.about.get("_error", f"{unit.name} is not ours"), where=now.host,
                        next="choose another experiment name, or remove that file yourself")
    whose = now.unit_files.get(f"{exp.host.supervisor}/{unit.name}", now.root)
    if whose != now.root:
        raise PlanError(f"a unit specbook-{unit.name}.service is there, and is not ours: " +
                        (f"it belongs to the kit's folder {whose}" if whose else "it was not written by this kit"),
                        where=now.host, next="choose another experiment name, or remove that file yourself")
    not_taken(now)
    why = _not_running(there)
    if there and there.running:
        why = newer or ("its unit file is not as the kit writes it" if there.digest == unit.digest
                        else "its settings changed")
    ours = {u.name: (u, reason) for u in now.units
            if _may_run(u) and (reason := why if u.name == unit.name else in_the_way(u, unit, now))}
    if now.port_holder and not any(u.port == unit.port for u, _ in ours.values()):
        raise PortBusy(f"port {unit.port} is held by {who(now.port_holder)}", where=now.host,
                       next="stop that process, or choose another port: serve.port")
    steps: list[Step] = [Stop(u.name, reason, exp.serve.stop_within_s) for u, reason in ours.values()
                         if u.kind == "service"]
    if now.gpus:
        if steps:
            steps.append(Free("memory of what was stopped comes back late; a start that finds it taken fails"))
        steps.append(Claim(unit, "so that a second experimenter is told who uses the GPUs",
                           tuple(lease.path for lease in now.leases)))
    if unit.env_file:
        steps.append(Secrets(unit.env_file, exp.engine.secrets, "the server gets them, and nothing else shows them"))
    expect = f"; earlier starts took {_minutes(now.expected_s)}" if now.expected_s else ""
    return [*steps, Start(unit, why, text, before),
            Healthy(unit.name, exp.serve.healthy_within_s,
                    f"started is not healthy: it must answer a generation{expect}")]


def _newer(exp: Experiment, now: Survey, there: UnitState | None) -> str:
    """Why a running service has read another version of its models; "" where it has not."""
    for checkpoint in _wanted(exp):
        fetched = now.models.get(checkpoint.slug)
        late = (fetched and fetched.since_s and there and there.started_at
                and there.started_at < fetched.since_s <= now.clock_s)      # else the clock was set back since
        if late or checkpoint.slug in now.changed:
            return f"it was started with another version of {checkpoint.slug}"
    return ""


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 100 else f"{seconds:.0f} s"


def _not_running(there: UnitState | None) -> str:
    if there is None or there.active == "not-found":
        return "it is not installed"
    return f"it is {there.active}" + (f" ({there.result})" if there.result not in ("", "success") else "")


def _mine(exp: Experiment, now: Survey) -> list[UnitState]:
    return [u for u in now.units if u.about.get("experiment") == exp.name]


def _stops(exp: Experiment, now: Survey) -> list[Step]:
    return [Stop(u.name, "it is running" if u.running else "its record is damaged: it may be running",
                 exp.serve.stop_within_s) for u in _mine(exp, now) if _may_run(u)]


def _may_run(u: UnitState) -> bool:
    """With a damaged record nobody knows; a stop finds its processes by their mark, or nothing."""
    return u.running or u.result == "damaged"


HEX = "[0-9a-f]"
# Folders below the root that the kit makes, and how it names what it puts there: the rest in them is not ours.
OWNED = {"units": ("*",), "models": (f"*-{HEX * 8}",), "engines": (f"*-{HEX * 8}",),
         "runs": (f"[0-9]*T[0-9]*Z-*-{HEX * 4}",), "secrets": ("*.env",), "compiled": ("*",),
         "bin": shipping.names()}


def _removals(exp: Experiment, now: Survey) -> list[Step]:
    mine = _mine(exp, now)
    forget = [Forget(u.name, f"it belongs to {exp.name}") for u in mine]
    others = sorted({u.about.get("experiment") or f"unit {u.name}" for u in now.units if u not in mine})
    if others:      # models and engines may be theirs too
        return [replace(f, why=f"{f.why}; the rest stays for {', '.join(others)}") for f in forget]
    there = {"units": [u.name for u in now.units], "models": now.models, "engines": now.engines, "bin": now.shipped}
    if not any(fnmatchcase(name, only) for folder, found in there.items() for name in found for only in OWNED[folder]):
        return []
    return [*forget, *(Remove(f"{now.root}/{folder}", "nothing else uses the kit's folder", only)
                       for folder, only in OWNED.items())]
