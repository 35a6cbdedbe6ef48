"""Runs the benchmark on the host, under the supervisor, and brings the records home.

The load runs beside the server, so the SSH tunnel is not measured; closing the
notebook or killing its kernel changes nothing. A run that is going on is taken
up; one that ended while nobody looked is collected; one that is already here is
not measured again, unless asked.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from dataclasses import asdict, replace

from kit import health, project, store, workload
from kit.adopting import unchanged
from kit.applying import Applier
from kit.engines import engine, service
from kit.errors import JobError, PlanError
from kit.evidence import evidence
from kit.following import run_to_end, state, stop, to_end
from kit.job import Job
from kit.planning import tools
from kit.seams import Host, UnitState
from kit.spec import Experiment
from kit.steps import Plan
from kit.store import Run
from kit.supervisors import supervisor
from kit.supervisors.foreign import for_jobs
from kit.surveying import survey
from kit.surveys import Survey

PROGRESS = re.compile(r"^progress (\d+) (\d+) ?(.*)")


def measure(exp: Experiment, host: Host, job: Job, again: bool = False, purpose: str = "bench") -> Run:
    """Benchmark this arm's service; the run's records are in data/runs when it returns."""
    folder = project.root() / "data" / "runs"
    jobs = for_jobs(exp)
    now = survey(jobs, host)
    key = identity(exp, now, purpose)
    if not again and (known := _known(key, folder)):
        job.line(f"already measured: {known.id}; again=True measures anew")
        return known
    Applier(Plan(tuple(tools(jobs, now)), jobs, "fetched"), host, job).run()
    there = _going_on(jobs, host, key, again)
    run_id = there.about["run_id"] if there else store.new_id(exp)
    content, sha = workload.encode(workload.job(exp, engine(exp.engine.name), run_id))
    if there is None:
        _ready(exp, host, now)
        host.write(f"{workload.remote_dir(host.root, run_id)}/job.json", content)
    unit = workload.unit(exp, host.root, exp.host.python, run_id, sha)
    unit = replace(unit, about={**unit.about, "identity": key})

    def on_line(text: str) -> None:
        found = PROGRESS.match(text)
        if found:
            job.progress(int(found[1]), int(found[2]), found[3])
        job.line(text)

    wait = to_end if there else run_to_end      # one that ends while we look must not be started over
    ended = there if there and not there.running else wait(
        host, supervisor(jobs.host.supervisor), exp.host.python, unit, on_line, job.raise_if_cancelled)
    meta = {"id": run_id, "identity": key, "purpose": purpose, **_meta(exp, host, now)}
    run = store.collect(host, workload.remote_dir(host.root, run_id), meta, folder,
                        evidence(exp, host, ended.started_at))
    if ended.result != "success":
        raise JobError(f"the benchmark ended early (exit {ended.exit_code}, {ended.signal or ended.result})",
                       where=f"{host.name}: what was measured is kept in {run.folder}",
                       next=f"read its log: kit.follow({unit.name!r}, host, {exp.host.supervisor!r})")
    return run


def identity(exp: Experiment, now: Survey, purpose: str) -> str:
    """Changes when what is measured, with what load, or what for, changes."""
    eng = engine(exp.engine.name)
    load, _ = workload.encode(workload.job(exp, eng, ""))
    what = [now.host, service(exp, now.root).digest, _models(exp, now), load.decode(), purpose]
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:16]


def _known(key: str, folder) -> Run | None:
    return next((r for r in store.runs(folder) if r.complete and r.meta.get("identity") == key), None)


def _going_on(exp: Experiment, host: Host, key: str, again: bool) -> UnitState | None:
    """The benchmark unit that already measures, or has measured, exactly this; None when a new one must start."""
    sup, python, name = supervisor(exp.host.supervisor), exp.host.python, f"bench-{exp.unit}"
    there = state(host, sup, python, name)
    same = there.about.get("identity") == key
    if there.running and not same and not again:
        raise PlanError(f"{name} is measuring other settings", where=host.name,
                        next="wait for it, or kit.bench(exp, host, again=True) to replace it")
    if there.running and (again or not same):
        stop(host, sup, python, name, exp.serve.stop_within_s)
        return None
    collectable = there.running or (there.result == "success" and not again)
    return there if same and collectable else None


def _ready(exp: Experiment, host: Host, now: Survey) -> None:
    """The right service is up, and answers."""
    wanted = service(exp, host.root)
    there = now.unit(wanted.name)
    if not supervisor(exp.host.supervisor).ours:
        if why := unchanged(exp, host):
            raise PlanError(f"{wanted.name} {why}", where=host.name, next="adopt it again: kit.adopt")
    elif not (there and there.running and there.digest == wanted.digest):
        is_so = "runs with other settings" if there and there.running else "is not running"
        raise PlanError(f"{wanted.name} {is_so}", where=host.name, next="serve it first: plan and apply")
    ok, why = health.probe(exp, host)
    if not ok:
        raise PlanError(f"{wanted.name} is not healthy: {why}", where=host.name, next="follow its log")


def _models(exp: Experiment, now: Survey) -> dict[str, dict]:
    """What the service reads: {role: {"source", "files": {name: {"size", "sha256"}}}}."""
    used = {"target": exp.target} | ({"drafter": exp.drafter} if exp.spec.needs_drafter else {})
    return {role: {"source": c.source, "files": (now.models[c.slug].manifest or {}).get("files", {})}
            for role, c in used.items() if c.slug in now.models}


def _meta(exp: Experiment, host: Host, now: Survey) -> dict:
    """Provenance: what was measured, where, with which versions."""
    eng = engine(exp.engine.name)
    return {"created_s": round(time.time(), 1), "experiment": exp.model_dump(mode="json"), "arm": exp.arm_name,
            "terms": eng.terms(exp.spec), "unit": asdict(service(exp, host.root)), "models": _models(exp, now),
            "engine": {"name": exp.engine.name, "packages": list(eng.packages)},
            "host": {"name": host.name, "hostname": now.hostname, "os": now.os, "cpu": list(now.cpu), "load": now.load,
                     "mem_free_mib": now.mem_free_mib, "gpus": [asdict(g) for g in now.gpus], "boot_id": now.boot_id}}
