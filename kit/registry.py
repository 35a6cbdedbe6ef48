"""Finds implementations by file name, so that adding one is adding a file."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from kit.errors import SpecError


def names(package: str) -> list[str]:
    """Names of a package's implementations, sorted: systemd_user.py is `systemd-user`."""
    return sorted(m.name.replace("_", "-") for m in pkgutil.iter_modules(importlib.import_module(package).__path__))


def lookup(package: str, name: str, attribute: str) -> Any:
    """`attribute` of module `package.name`."""
    if name not in names(package):
        raise SpecError(f"no {package.rsplit('.', 1)[-1].rstrip('s')} named {name!r}",
                        where=package, next=f"known: {', '.join(names(package))}")
    return getattr(importlib.import_module(f"{package}.{name.replace('-', '_')}"), attribute)
