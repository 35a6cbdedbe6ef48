"""What ssh reads from disk, as ssh reads it: the config with its Includes, and known_hosts. No network.

paramiko's own readers follow no `Include`, take `~` and `%` in the middle of a
path for tokens, and stop at a known_hosts line with a marker; these do not.

    known = Known.load(["~/.ssh/known_hosts"], "[gpu-7]:2222")
    known.verdict("ssh-ed25519", blob)      # "ok" | "unknown" | "changed" | "revoked"
"""

from __future__ import annotations

import base64
import fnmatch
import glob
import hashlib
import hmac
import os
from dataclasses import dataclass
from pathlib import Path

PATH_KEYS = ("identityfile", "userknownhostsfile", "globalknownhostsfile", "certificatefile")


def words(text: str) -> list[str]:
    """Split a config value as OpenSSH does: quotes, backslash, a trailing # comment.

    >>> words('"/a b\\\\"c" /d # why')
    ['/a b"c', '/d']
    """
    out: list[str] = []
    word, quote, i = None, "", 0
    while i < len(text):
        c = text[i]
        if c == "\\" and i + 1 < len(text) and (text[i + 1] in "\\\"'" or (not quote and text[i + 1] == " ")):
            i += 1
            word = (word or "") + text[i]
        elif quote:
            quote, word = ("", word) if c == quote else (quote, word + c)
        elif c in "\"'":
            quote, word = c, word or ""
        elif c.isspace():
            if word is not None:
                out.append(word)
            word = None
        elif c == "#" and word is None:
            return out
        else:
            word = (word or "") + c
        i += 1
    return out + ([word] if word is not None else [])


def quoted(path: str | Path) -> str:
    """A path as one word of an ssh config, also with spaces, quotes and %."""
    return '"' + str(path).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%") + '"'


def expand(path: str, tokens: dict[str, str]) -> str:
    """`~/` at the start and %-tokens (`%d`, `%u`, `%h` …; `%%` is a percent sign)."""
    out, i = "", 0
    while i < len(path):
        if path[i] == "%" and i + 1 < len(path):
            out += "%" if path[i + 1] == "%" else tokens.get(path[i + 1], path[i:i + 2])
            i += 1
        else:
            out += path[i]
        i += 1
    return os.path.expanduser(out)


def read_config(path: str | Path, depth: int = 0) -> str:
    """The text of a config with its `Include`s in place; "" when there is no such file.

    After an Include the enclosing Host or Match line is said again, so that what
    follows still belongs to it. Path values get a trailing comment, which keeps
    paramiko from stripping half of their quotes.
    """
    try:
        lines = Path(path).expanduser().read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except FileNotFoundError:
        return ""
    out, block = [], "Host *"
    for line in lines:
        key, _, value = line.strip().replace("=", " ", 1).replace("\t", " ", 1).partition(" ")
        key, value = key.lower(), value.strip()
        if key in ("host", "match"):
            block = line
        if key == "include" and depth < 16:
            base = Path(path).expanduser().parent
            for pattern in words(value):
                for found in sorted(glob.glob(str(base / os.path.expanduser(pattern)))):
                    out.append(read_config(found, depth + 1))
            out.append(block)
        else:
            out.append(f"{key} {value} #" if key in PATH_KEYS else line)
    return "\n".join(out) + "\n"


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
