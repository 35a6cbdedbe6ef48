"""The seam through which headers are read: a listing and byte ranges, nothing else.

The same parsers work on a local folder, on a host behind SSH, and over HTTP
ranges. A reader never serves a name that it did not list, so an index file
cannot point outside the folder.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Protocol

from kit.errors import CheckError


class Reader(Protocol):
    """name: for messages. Errors: CheckError when there is nothing to read, KitError from below otherwise."""

    name: str

    def list(self) -> dict[str, int]:
        """{file name: bytes} of the regular files in the folder (not below it); links are followed."""

    def read(self, name: str, offset: int, size: int) -> bytes:
        """At most `size` bytes; fewer only at the end of the file."""


class LocalReader:
    """A folder or a single file of this machine.

    >>> LocalReader("data/models/micro-llama/eagle3").list()["config.json"]
    655
    """

    def __init__(self, path: str | os.PathLike):
        self.path = snapshot(Path(path))
        self.name = str(path)
        self._sizes: dict[str, int] | None = None

    def list(self) -> dict[str, int]:
        if self._sizes is None:
            try:
                folder = self.path.is_dir()
                entries = sorted(os.listdir(self.path)) if folder else [self.path.name]
                os.stat(self.path)
            except (OSError, ValueError) as e:
                reason = getattr(e, "strerror", None) or str(e)
                raise CheckError(f"no model to read: {reason}", where=self.name,
                                 next="give the folder of a checkpoint, or a .gguf file") from None
            self.folder = self.path if folder else self.path.parent
            self._sizes = {e: s for e in entries if (s := _size(self.folder / e)) is not None}
        return self._sizes

    def read(self, name: str, offset: int, size: int) -> bytes:
        if name not in self.list():
            raise CheckError(f"{name}: no such file", where=self.name, next="fetch the checkpoint again")
        try:
            with open(self.folder / name, "rb") as f:
                f.seek(offset)
                return f.read(size)
        except OSError as e:
            raise CheckError(f"{name}: cannot read: {e.strerror}", where=self.name,
                             next="check the permissions of that file") from None


def _size(path: Path) -> int | None:
    """Of a regular file; None for folders, pipes, dangling and cyclic links."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def snapshot(path: Path) -> Path:
    """The revision folder of a hub cache entry (`models--org--name`), any other path unchanged."""
    try:
        if not (path / "snapshots").is_dir() or (path / "config.json").exists():
            return path
        ref = path / "refs" / "main"
        if ref.is_file():
            commit = path / "snapshots" / ref.read_text()[:64].strip()
            if commit.parent == path / "snapshots" and commit.is_dir():
                return commit
        revisions = [p for p in (path / "snapshots").iterdir() if p.is_dir()]
        return revisions[0] if len(revisions) == 1 else path
    except (OSError, ValueError):
        return path
