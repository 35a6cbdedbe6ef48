"""Where the project's own folders are, whatever folder a notebook runs in."""

from __future__ import annotations

import getpass
import platform
from pathlib import Path


def root(start: Path | None = None) -> Path:
    """The nearest folder at or above `start` (default: the current one) that holds configs/ and notebooks/."""
    start = (start or Path.cwd()).resolve()
    for folder in (start, *start.parents):
        if (folder / "configs").is_dir() and (folder / "notebooks").is_dir():
            return folder
    return start


def me() -> str:
    """Who a note on a host says we are: where all log in as root, only this tells us apart."""
    return f"{getpass.getuser()}@{platform.node()}"


def resolve(path: str | Path) -> Path:
    """A path as written in a config or notebook: absolute, or below the current folder, or below the project."""
    path = Path(path).expanduser()
    return path if path.is_absolute() or path.exists() else root() / path
