"""Where checkpoints come from. One file each, with a module-level `SOURCE`; the file name is the scheme."""

from __future__ import annotations

from kit.registry import lookup
from kit.seams import Source


def source(scheme: str) -> Source:
    """The source of that scheme; `SpecError` names the known ones."""
    return lookup(__name__, scheme, "SOURCE")
