"""The programs that travel to the host: text, read from kit/remote. They are never imported here."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources


@cache
def content(name: str) -> bytes:
    """A file of kit/remote, e.g. `babysit.py`."""
    return resources.files("kit.remote").joinpath(name).read_bytes()


def names() -> tuple[str, ...]:
    """All of them."""
    return tuple(sorted(f.name for f in resources.files("kit.remote").iterdir()
                        if f.name.endswith(".py") and f.name != "__init__.py"))


def sha256(name: str) -> str:
    return hashlib.sha256(content(name)).hexdigest()


def path(name: str, root: str) -> str:
    """Where it lies on the host."""
    return f"{root}/bin/{name}"
