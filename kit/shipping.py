"""The programs that travel to the host: text, read from kit/remote. They are never imported here."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources

BUNDLE = """import sys, types
for name, text in {0!r}:
    sys.modules[name] = types.ModuleType(name)
    exec(compile(text, name + ".py", "exec"), sys.modules[name].__dict__)
exec(compile({1!r}, {2!r}, "exec"))
"""


@cache
def content(name: str) -> bytes:
    """A file of kit/remote, e.g. `babysit.py`."""
    return resources.files("kit.remote").joinpath(name).read_bytes()


def bundle(name: str, *beside: str) -> bytes:
    """`name` with the files that it imports, as one program for a Python that reads it from stdin.

    >>> bundle("foreign_unit.py", "journal.py")[:16]
    b'import sys, type'
    """
    return BUNDLE.format([(n.removesuffix(".py"), content(n).decode()) for n in beside],
                         content(name).decode(), name).encode()


def names() -> tuple[str, ...]:
    """All of them."""
    return tuple(sorted(f.name for f in resources.files("kit.remote").iterdir()
                        if f.name.endswith(".py") and f.name != "__init__.py"))


def sha256(name: str) -> str:
    return hashlib.sha256(content(name)).hexdigest()


def path(name: str, root: str) -> str:
    """Where it lies on the host."""
    return f"{root}/bin/{name}"
