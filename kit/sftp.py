"""Files over one SFTP client that nobody else is using. No paramiko import: it is handed the client.

A transfer that was cut goes on from what is already there; whether the bytes
are the right ones is the caller's to check (sources compare sha256).
"""

from __future__ import annotations

import os
import posixpath
import secrets
import stat
from typing import Any

from kit.errors import HostError
from kit.seams import Progress

CHUNK = 1 << 18


class Short(Exception):
    """Fewer bytes arrived than were sent; the host said nothing about it (a full disk does this)."""


def size(sftp: Any, path: str) -> int | None:
    """Size of a file there; None when there is none."""
    try:
        return sftp.stat(path).st_size
    except FileNotFoundError:
        return None


def make_folder(sftp: Any, path: str) -> None:
    """`mkdir -p`. Somebody else making it at the same moment is no error."""
    if not path or size(sftp, path) is not None:
        return
    make_folder(sftp, posixpath.dirname(path))
    try:
        sftp.mkdir(path)
    except OSError:
        if size(sftp, path) is None:
            raise


def read(sftp: Any, path: str, offset: int, count: int | None) -> bytes:
    with sftp.open(path, "rb") as f:
        there = f.stat().st_size or 0
        end = there if count is None else min(there, offset + count)
        if end - offset > CHUNK:
            f.seek(offset)
            f.prefetch(end, max_concurrent_requests=64)
        f.seek(offset)
        return f.read(count) if count is not None else f.read()


def write(sftp: Any, path: str, data: bytes, mode: int) -> None:
    """Into a new file beside it, with its mode before its content, then moved over the old one."""
    make_folder(sftp, posixpath.dirname(path))
    part = posixpath.join(posixpath.dirname(path), f".{posixpath.basename(path)[:100]}.{secrets.token_hex(4)}.part")
    try:
        with sftp.open(part, "wbx") as f:
            f.chmod(mode)
            f.set_pipelined(True)
            f.write(data)
        if size(sftp, part) != len(data):
            raise Short
        sftp.posix_rename(part, path)
    except BaseException:
        try:
            sftp.remove(part)
        except (OSError, EOFError):
            pass            # the link broke, or it was never made
        raise


def put(sftp: Any, local: str, path: str, progress: Progress | None) -> None:
    total, have = os.stat(local).st_size, size(sftp, path)
    _refuse_longer(have, total, path, local)
    make_folder(sftp, posixpath.dirname(path))
    done, note = have or 0, posixpath.basename(path)
    with open(local, "rb") as source, sftp.open(path, "wb" if have is None else "r+b") as f:
        source.seek(done)
        f.seek(done)
        f.set_pipelined(True)
        _tell(progress, done, total, note)
        while chunk := source.read(CHUNK):
            f.write(chunk)
            done += len(chunk)
            _tell(progress, done, total, note)
    if size(sftp, path) != total:
        raise Short


def get(sftp: Any, path: str, local: str, progress: Progress | None) -> None:
    about = sftp.stat(path)
    if stat.S_ISDIR(about.st_mode):
        raise HostError("is a folder, not a file", where=path, next="name a file in it")
    total, have = about.st_size, os.path.getsize(local) if os.path.exists(local) else 0
    _refuse_longer(have, total, local, path)
    os.makedirs(os.path.dirname(os.path.abspath(local)), exist_ok=True)
    done, note = have, posixpath.basename(path)
    with open(local, "ab") as sink, sftp.open(path, "rb") as f:
        f.seek(done)
        if done < total:
            f.prefetch(total, max_concurrent_requests=64)
        _tell(progress, done, total, note)
        while done < total and (chunk := f.read(min(CHUNK, total - done))):
            sink.write(chunk)
            done += len(chunk)
            _tell(progress, done, total, note)
    if done != total:
        raise Short


def _refuse_longer(have: int | None, total: int, there: str, source: str) -> None:
    if have is not None and have > total:
        raise HostError(f"{there} has {have} bytes, its source {source} only {total}", where=there,
                        next="it is another file: remove it, then send again")


def _tell(progress: Progress | None, done: int, total: int, note: str) -> None:
    if progress:
        progress(done, total, note)
