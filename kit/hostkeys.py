"""Host keys, strictly: what known_hosts says of a server, and the one way to add to it.

    known = Known.load(["~/.ssh/known_hosts"], "[gpu-7]:2222")
    known.verdict(blob)                     # "ok" | "unknown" | "changed" | "revoked"
"""

from __future__ import annotations

import base64
import fnmatch
import hashlib
import hmac
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit.errors import HostKeyError


def fingerprint(blob: bytes) -> str:
    """As `ssh-keygen -l` shows it: SHA256:… without padding."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def key_name(host: str, port: int) -> str:
    """How known_hosts calls a server: the host, or [host]:port off port 22."""
    return host if port == 22 else f"[{host}]:{port}"


@dataclass(frozen=True)
class KnownKey:
    """One line of a known_hosts file that speaks of our host."""

    type: str
    blob: bytes
    where: str          # file:line
    revoked: bool = False


@dataclass(frozen=True)
class Known:
    """What the known_hosts files say about one host name."""

    keys: tuple[KnownKey, ...]

    @classmethod
    def load(cls, files: list[str], name: str) -> Known:
        keys = []
        for file in files:
            try:
                lines = Path(file).expanduser().read_text(encoding="utf-8", errors="surrogateescape").splitlines()
            except (FileNotFoundError, NotADirectoryError):
                continue
            for number, line in enumerate(lines, 1):
                parts = line.split()
                marker = parts.pop(0) if parts and parts[0].startswith("@") else ""
                if len(parts) < 3 or parts[0].startswith("#") or marker == "@cert-authority":
                    continue
                if _names(parts[0], name):
                    try:
                        blob = base64.b64decode(parts[2], validate=True)
                    except ValueError:
                        continue
                    keys.append(KnownKey(parts[1], blob, f"{file}:{number}", marker == "@revoked"))
        return cls(tuple(keys))

    @property
    def types(self) -> list[str]:
        """Key types we know, so that the server is asked for one of these."""
        return list(dict.fromkeys(k.type for k in self.keys if not k.revoked))

    def verdict(self, blob: bytes) -> str:
        """ok, unknown (never seen this host), changed (seen with another key) or revoked."""
        same = [k for k in self.keys if k.blob == blob]
        if any(k.revoked for k in same):
            return "revoked"
        if same:
            return "ok"
        return "changed" if self.types else "unknown"


def _names(patterns: str, name: str) -> bool:
    """Whether the first field of a known_hosts line (hashed, or patterns with ! * ?) covers `name`."""
    if patterns.startswith("|1|"):
        try:
            salt, digest = (base64.b64decode(p) for p in patterns.split("|")[2:4])
        except ValueError:
            return False
        return hmac.compare_digest(hmac.new(salt, name.encode(), hashlib.sha1).digest(), digest)
    hit = False
    for pattern in patterns.split(","):
        # brackets are literal in known_hosts, and a class in fnmatch
        want = pattern.removeprefix("!").lower().replace("[", "[[]")
        if fnmatch.fnmatchcase(name.lower(), want):
            if pattern.startswith("!"):
                return False
            hit = True
    return hit


def remember(file: str, name: str, key_type: str, blob: bytes, hashed: bool = False) -> None:
    """Append one key to a known_hosts file (made 0600 in a 0700 folder where it is missing)."""
    path = Path(file).expanduser()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if hashed:
        salt = os.urandom(20)
        digest = hmac.new(salt, name.encode(), hashlib.sha1).digest()
        name = "|1|" + "|".join(base64.b64encode(b).decode() for b in (salt, digest))
    line = f"{name} {key_type} {base64.b64encode(blob).decode()}\n".encode()
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        size = os.fstat(fd).st_size
        if size and os.pread(fd, 1, size - 1) != b"\n":      # never join another's last line
            line = b"\n" + line
        os.write(fd, line)
    finally:
        os.close(fd)


class Strict:
    """paramiko's policy for host keys: it is given no known ones, so it asks here for each."""

    def __init__(self, name: str, alias: str, known: Known, file: str, accept: str | None, hashed: bool):
        self.name, self.alias, self.known, self.file = name, alias, known, file
        self.accept, self.hashed = accept, hashed

    def missing_host_key(self, client: Any, hostname: str, key: Any) -> None:
        blob, kind = key.asbytes(), key.get_name()
        shown = fingerprint(blob)
        verdict = self.known.verdict(blob)
        if verdict in ("changed", "revoked"):
            old = ", ".join(f"{k.type} {fingerprint(k.blob)}" for k in self.known.keys)
            raise HostKeyError(f"the host key of {self.alias} is {verdict}: it shows {kind} {shown}, known is {old}",
                               where=self.known.keys[0].where,
                               next="ask who runs the host; only if its key was really replaced, delete that line")
        if verdict == "unknown" and self.accept != shown:
            told = f", which is not the accepted {self.accept}" if self.accept else ""
            next = "do not go on: ask who runs the host which key is right" if self.accept else \
                f'compare it with the host\'s, then kit.connect("{self.name}", accept="{shown}")'
            raise HostKeyError(f"the host key of {self.alias} is not known: {kind} {shown}{told}", where=self.file,
                               next=next)
        if verdict == "unknown":
            remember(self.file, self.alias, kind, blob, self.hashed)
