"""Inference servers. One file each, with a module-level `ENGINE`; the file name is the engine's name."""

from __future__ import annotations

from kit.registry import lookup
from kit.seams import Engine


def engine(name: str) -> Engine:
    """The engine of that name; `SpecError` names the known ones."""
    return lookup(__name__, name, "ENGINE")
