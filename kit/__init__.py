"""Specbook: notebooks as runbooks for speculative decoding on your own GPU hosts.

    import kit
    exp  = kit.Experiment.load("configs/laptop.yaml").arm("eagle3")
    host = kit.connect(exp)                              # SSH, strict host keys
    kit.check(exp, host)                                 # does the drafter fit?
    plan = kit.plan(exp, kit.survey(exp, host))          # what must change, and why
    kit.watch(kit.apply(plan, host))                     # ends healthy, or says why not
    run  = kit.bench(exp, host).result()                 # the load runs on the host
    kit.report(kit.runs(exp))                            # one offline HTML file
"""

from __future__ import annotations

from kit import metrics, plots
from kit.analysis import compare
from kit.checking import check
from kit.errors import KitError
from kit.planning import plan
from kit.reading import phases, report, running, runs, speculative_arm, summary, terms
from kit.spec import Experiment
from kit.surveying import survey
from kit.ui import watch
from kit.verbs import apply, bench, connect, follow, tune
from kit.verdict import sentences
from kit.widgets import controls

__all__ = ["Experiment", "KitError", "apply", "bench", "check", "compare", "connect", "controls", "follow", "metrics",
           "phases", "plan", "plots", "report", "running", "runs", "sentences", "speculative_arm", "summary", "survey",
           "terms", "tune", "watch"]


def __dir__() -> list[str]:
    return list(__all__)
