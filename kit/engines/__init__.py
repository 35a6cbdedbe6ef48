"""Inference servers. One file each, with a module-level `ENGINE`; the file name is the engine's name."""

from __future__ import annotations

from dataclasses import replace

from kit.registry import lookup
from kit.seams import Engine, Unit
from kit.spec import Experiment


def engine(name: str) -> Engine:
    """The engine of that name; `SpecError` names the known ones."""
    return lookup(__name__, name, "ENGINE")


def service(exp: Experiment, root: str) -> Unit:
    """The unit that serves this arm: the engine's command, and how the config wants it kept.

    >>> service(Experiment.load("configs/micro.yaml"), "/r").name
    'micro-baseline'
    """
    secrets = f"{root}/secrets/{exp.unit}.env" if exp.engine.secrets else ""
    made = engine(exp.engine.name).service(exp, root)
    gpus = made.env.get("CUDA_VISIBLE_DEVICES")
    about = {**made.about, "devices": gpus} if gpus else made.about
    return replace(made, about=about, env_file=secrets, user=exp.host.run_as,
                   restart=exp.serve.restart, at_boot=exp.serve.at_boot)
