"""The controls, tied to a host: Apply plans, restarts the service with the new setting, and probes it shortly."""

from __future__ import annotations

from typing import Any

from kit import reading, ui
from kit.seams import Host
from kit.spec import Experiment
from kit.verbs import tune


def controls(exp: Experiment, host: Host | None = None) -> ui.Controls:
    """Fields for this arm's speculative parameters; without a host they only show the difference.

    `.experiment` is the last valid setting, `.result` the run that the last Apply measured.

    >>> knobs = kit.controls(exp.arm("eagle3"), host)
    """

    def measured(setting: Experiment) -> Any:
        """What past runs of exactly this arm's settings gave."""
        past = [r for purpose in ("bench", "tune") for r in reading.runs(purpose=purpose)
                if r.meta["experiment"]["arms"].get(setting.arm_name) == setting.spec.model_dump(mode="json")
                and r.meta["arm"] == setting.arm_name and r.meta["experiment"]["name"] == setting.name]
        return reading.summary(past[:3]) if past else ""

    return ui.controls(exp, on_apply=(lambda setting: tune(setting, host)) if host else None, measured=measured)
