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

import importlib
from typing import Any

# name: the module that has it. Loaded at first use, so that a command line tool does not pay for widgets.
_HOME = {
    "Experiment": "spec", "KitError": "errors", "adopt": "adopting", "apply": "verbs", "bench": "verbs",
    "check": "checking", "compare": "analysis", "connect": "verbs", "controls": "widgets", "diagnosis": "reading",
    "follow": "verbs", "metrics": "", "phases": "reading", "plan": "planning", "plots": "", "preflight": "prelaunch",
    "report": "reading", "running": "reading", "runs": "reading", "sentences": "verdict", "speculative_arm": "reading",
    "summary": "reading", "sudo": "verbs", "survey": "surveying", "terms": "reading", "tune": "verbs", "watch": "ui",
}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"kit has no {name!r}; it has {', '.join(_HOME)}")
    home = _HOME[name]
    value = getattr(importlib.import_module(f"kit.{home}"), name) if home else importlib.import_module(f"kit.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
