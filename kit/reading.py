"""What a notebook reads: runs and tables about them, a service's start, an arm's flags, and the report."""

from __future__ import annotations

import shlex
from pathlib import Path

import pandas as pd

from kit import metrics, project, stages, store
from kit.command import Command
from kit.diagnose import Diagnosis, diagnose
from kit.engines import engine
from kit.errors import PlanError
from kit.following import recent, state
from kit.pages import report as write_report
from kit.seams import Host
from kit.spec import Experiment
from kit.store import Run
from kit.supervisors import supervisor
from kit.surveying import survey


def runs(exp: Experiment | None = None, purpose: str = "bench") -> list[Run]:
    """Complete runs in data/runs, newest first: all, or of one experiment on its host the newest of each arm.

    purpose   "bench", or "tune" for the short probes of the controls

    >>> kit.runs(exp)[0].meta["arm"]
    """
    every = [r for r in store.runs(project.root() / "data" / "runs") if r.complete and r.meta.get("purpose") == purpose]
    if exp is None:
        return every
    mine = [r for r in every if (r.meta["experiment"]["name"], r.meta["experiment"]["host"]["ssh"])
            == (exp.name, exp.host.ssh)]
    if not mine:
        raise PlanError(f"no runs of {exp.name} on {exp.host.ssh} yet", where="data/runs",
                        next="benchmark first: notebooks 50, 60 and 70")
    return list({r.meta["arm"]: r for r in reversed(mine) if r.meta["arm"] in exp.arms}.values())[::-1]


SHOWN = {"arm": "arm", "prompt_set": "prompts", "concurrency": "concurrency", "requests": "requests",
         "failed": "failed", "tok_s": "tok/s", "ttft_ms_p50": "TTFT ms p50", "tpot_ms_p50": "per token ms p50",
         "accept_length": "accept length"}


def summary(runs: list[Run]) -> pd.DataFrame:
    """A short table, one row per cell: what a reader looks at first. All columns: `kit.metrics.points(runs)`."""
    return metrics.points(runs)[list(SHOWN)].rename(columns=SHOWN).round(2)


def speculative_arm(exp: Experiment) -> str:
    """The first arm that needs a drafter, else the first that speculates, else the arm in force."""
    arms = exp.arms.items()
    return next((name for name, s in arms if s.needs_drafter),
                next((name for name, s in arms if s.algorithm != "none"), exp.arm_name))


def terms(exp: Experiment) -> pd.DataFrame:
    """The speculative parameters of every arm, in the field's terms, SGLang's, vLLM's and this engine's own flags."""
    eng = engine(exp.engine.name)
    rows = {name: {"algorithm": s.algorithm, "drafted per step (vLLM num_speculative_tokens)": str(s.drafts),
                   "verified per step (SGLang num_draft_tokens)": str(s.verified), **eng.terms(s)}
            for name, s in exp.arms.items()}
    return pd.DataFrame(rows).fillna("").rename_axis(index="parameter", columns="arm")    # long: flags are not cut


def running(exp: Experiment, host: Host) -> Experiment:
    """The experiment with the arm in force whose service runs there, or ran last."""
    now = survey(exp, host)
    there = [u for u in now.units if u.about.get("experiment") == exp.name and u.kind == "service"
             and u.about.get("arm") in exp.arms]
    if not there:
        raise PlanError(f"no service of {exp.name} was started yet", where=host.name, next="serve one: notebook 30")
    return exp.arm(max(there, key=lambda u: (u.running, u.started_at or 0)).about["arm"])


def phases(exp: Experiment, host: Host) -> pd.DataFrame:
    """The phases of this arm's last start, from its log: seconds since its first line, and what each means."""
    said = recent(host, supervisor(exp.host.supervisor), exp.host.python, exp.unit)
    began = next((line.time_s for line in said if line.time_s is not None), None)
    seen = stages.phases(engine(exp.engine.name).phases, [(line.time_s, line.text) for line in said])
    return pd.DataFrame([(name, None if t is None or began is None else round(t - began, 2), meaning)
                         for name, t, meaning in seen], columns=["phase", "after_s", "meaning"])


def diagnosis(exp: Experiment, host: Host) -> Diagnosis:
    """What this arm's log says: how far the service came, what went wrong and the fix, or how it does; live or dead.

    A start that hangs shows by its silence, so a running service's is measured, on the host's own clock.

    >>> kit.diagnosis(exp, host)
    """
    sup, python = supervisor(exp.host.supervisor), exp.host.python
    now = state(host, sup, python, exp.unit)
    if now.active == "not-found":
        raise PlanError(f"{exp.unit} was never started there", where=host.name, next="serve it: notebook 30, 60 or 70")
    said = recent(host, sup, python, exp.unit)
    clock = host.run(Command((python, "-c", "import time; print(time.time())"))).check("the host's clock").text
    last_s = next((line.time_s for line in reversed(said) if line.time_s is not None), now.started_at)
    silent_s = max(0.0, float(clock) - last_s) if now.running and last_s is not None else None
    command = shlex.join(engine(exp.engine.name).service(exp, host.root).argv)
    return diagnose(said, exp.engine.release, command, silent_s, f"{exp.unit} on {host.name}: {now.active}")


def report(runs: list[Run], folder: str | Path = "") -> Path:
    """One HTML file that opens offline: verdict, numbers, plots, method, provenance. Returns its path."""
    if not runs:
        raise PlanError("no runs to report on", where="data/runs", next="benchmark first")
    newest = runs[0].meta
    folder = Path(folder) if folder else project.root() / "data" / "reports" / newest["id"]
    folder.mkdir(parents=True, exist_ok=True)
    name = newest["experiment"]["name"]
    provenance = {"host": newest["host"], "engine": newest["engine"], "models": newest["models"],
                  "arms": {r.meta["arm"]: r.meta["terms"] for r in reversed(runs)},
                  "runs": [r.id for r in runs]}
    return write_report(metrics.points(runs), metrics.requests(runs), title=f"{name} on {newest['host']['name']}",
                        path=folder / "report.html", provenance=provenance)
