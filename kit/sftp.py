"""Files of a host: small ones over SFTP, the content of large ones over a command's channel.

Nothing of paramiko is imported: `files` is an SFTP client that nobody else is
using. A transfer that was cut goes on from what is already there; whether the
bytes are the right ones is the caller's to check (sources compare sha256).

(paramiko's own prefetch leaves threads behind that print tracebacks when a
transfer is cancelled or the link breaks; hence `tail` for what is large.)
"""

from __future__ import annotations

import os
import posixpath
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kit.command import Command
from kit.errors import HostError, LinkLost, NoSpace, NoSuchFile
from kit.seams import Progress

CHUNK = 1 << 18


class Short(Exception):
    """Fewer bytes arrived than were sent; the host said nothing about it (a full disk does this)."""


def size(files: Any, path: str) -> int | None:
    """Size of a file there; None when there is none."""
    try:
        return files.stat(path).st_size
    except FileNotFoundError:
        return None


def make_folder(files: Any, path: str) -> None:
    """`mkdir -p`. Somebody else making it at the same moment is no error."""
    if not path or size(files, path) is not None:
        return
    make_folder(files, posixpath.dirname(path))
    try:
        files.mkdir(path)
    except OSError:
        if size(files, path) is None:
            raise


def read(files: Any, path: str, offset: int, count: int | None) -> bytes | None:
    """The bytes, or None where there are too many to ask for one by one."""
    with files.open(path, "rb") as f:
        there = f.stat().st_size or 0
        if min(there - offset, count if count is not None else there) > CHUNK:
            return None
        f.seek(offset)
        return f.read(count) if count is not None else f.read()


def tail(path: str, offset: int) -> Command:
    """Everything of a file from `offset` on."""
    return Command(("tail", "-c", f"+{offset + 1}", "--", path), limit_s=None)


def write(files: Any, path: str, data: bytes, mode: int) -> None:
    """Into a new file beside it, with its mode before its content, then moved over the old one."""
    make_folder(files, posixpath.dirname(path))
    part = posixpath.join(posixpath.dirname(path), f".{posixpath.basename(path)[:100]}.{secrets.token_hex(4)}.part")
    try:
        with files.open(part, "wbx") as f:
            f.chmod(mode)
            f.set_pipelined(True)
            f.write(data)
        if size(files, part) != len(data):
            raise Short
        files.posix_rename(part, path)
    except BaseException:
        try:
            files.remove(part)
        except (OSError, EOFError):
            pass            # the link broke, or it was never made
        raise


def put(files: Any, local: str, path: str, progress: Progress | None) -> None:
    total, have = os.stat(local).st_size, size(files, path)
    _refuse_longer(have, total, path, local)
    make_folder(files, posixpath.dirname(path))
    done, note = have or 0, posixpath.basename(path)
    with open(local, "rb") as source, files.open(path, "wb" if have is None else "r+b") as f:
        source.seek(done)
        f.seek(done)
        f.set_pipelined(True)
        _tell(progress, done, total, note)
        while chunk := source.read(CHUNK):
            f.write(chunk)
            done += len(chunk)
            _tell(progress, done, total, note)
    if size(files, path) != total:
        raise Short


def get(host: Any, about: Any, path: str, local: str, progress: Progress | None) -> None:
    """`about` is what stat said of `path`."""
    if stat.S_ISDIR(about.st_mode):
        raise HostError(f"{path} is a folder, not a file", where=host.name, next="name a file in it")
    total, have = about.st_size, os.path.getsize(local) if os.path.exists(local) else 0
    _refuse_longer(have, total, local, path)
    os.makedirs(os.path.dirname(os.path.abspath(local)), exist_ok=True)
    done, note = have, posixpath.basename(path)
    with open(local, "ab", buffering=0) as sink:
        _tell(progress, done, total, note)
        if done < total:
            with host.stream(tail(path, done)) as chunks:
                for chunk in chunks:
                    sink.write(chunk[:total - done])
                    done += len(chunk[:total - done])
                    _tell(progress, done, total, note)
                    if done == total:
                        break
    if done != total:
        raise HostError(f"{path} became shorter while it was read", where=host.name, next="get it again")


@contextmanager
def full_disk_named(host: Any, path: str, need: int) -> Iterator[None]:
    """SFTP has no word for a full disk: where a write failed, see whether `need` bytes are free."""
    try:
        yield
    except (LinkLost, NoSuchFile):
        raise
    except Short:
        require_space(host, path, need)
        raise HostError(f"{path}: fewer bytes arrived than were sent", where=host.name,
                        next="look at that disk and its quota, then again") from None
    except HostError:
        require_space(host, path, need)
        raise


def require_space(host: Any, path: str, need: int) -> None:
    """NoSpace unless the disk that holds `path`, or its nearest folder that exists, has `need` bytes free."""
    folder = path
    while folder not in ("", "/"):
        result = host.run(Command(("df", "-Pk", "--", folder)))
        if result.exit == 0:
            free = int(result.text.splitlines()[-1].split("%")[0].split()[-2]) * 1024
            if free < need:
                raise NoSpace(f"{path}: {free} bytes are free there, too few for {need} more", where=host.name,
                              next="free some space there, then again: it goes on from where it stopped")
            return
        folder = posixpath.dirname(folder)


def _refuse_longer(have: int | None, total: int, there: str, source: str) -> None:
    if have is not None and have > total:
        raise HostError(f"{there} has {have} bytes, its source {source} only {total}", where=there,
                        next="it is another file: remove it, then send again")


def _tell(progress: Progress | None, done: int, total: int, note: str) -> None:
    if progress:
        progress(done, total, note)
