"""The controls, tied to a host: Apply plans, restarts the service with the new setting, and probes it shortly."""

from __future__ import annotations

from typing import Any

from kit import reading, ui
from kit.seams import Host
from kit.spec import Experiment
from kit.store import Run
from kit.verbs import tune


def controls(exp: Experiment, host: Host | None = None) -> ui.Controls:
    """Fields for this arm's speculative parameters; without a host they only show the difference.

    `.experiment` is the last valid setting, `.result` the run that the last Apply measured.

    >>> knobs = kit.controls(exp.arm("eagle3"), host)
    """
    # read once: a field changes often, and a store can hold a thousand runs; what Apply measures is added
    kept = [r for purpose in ("bench", "tune") for r in reading.runs(purpose=purpose)]

    def measured(setting: Experiment) -> Any:
        """What past runs of exactly this arm's settings gave."""
        arm, spec = setting.arm_name, setting.spec.model_dump(mode="json")
        past = [r for r in kept if r.meta["arm"] == arm and r.meta["experiment"]["name"] == setting.name
                and r.meta["experiment"]["arms"].get(arm) == spec]
        return reading.summary(past[:3]) if past else ""

    def said(run: Run) -> Any:
        if run.id not in {r.id for r in kept}:
            kept.insert(0, run)
        return reading.summary([run])

    return ui.controls(exp, on_apply=(lambda setting: tune(setting, host)) if host else None, measured=measured,
                       said=said)
