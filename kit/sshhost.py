"""What can be done on a host behind SSH: the `Host` protocol over connections that `kit.host` opens.

Commands and small files share one connection, streams, transfers and tunnels
use others, so neither keeps the other waiting. sshd takes 10 sessions on a
connection (MaxSessions); at most 8 commands go at once, further ones wait.

The login shell on the host gets plain POSIX quoting (`Command.shell`), which
bash, dash, zsh and fish read alike; longer scripts travel on stdin to `sh -s`.
"""

from __future__ import annotations

import os
import posixpath
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kit import channels, sftp
from kit.command import Command, Result
from kit.errors import HostError, KitError, LinkLost, NoSpace
from kit.seams import Http, Progress
from kit.tunnel import Tunnel

SLOTS = 8
GRACE_S = 35.0          # beyond a command's own limit: 5 s for KILL, and a slow network


class Refused(Exception):
    """Nobody listens on that port of the host."""


class SshHost:
    """A machine behind SSH; safe to use from many threads. Get one with `kit.connect`.

    name    as it was asked for
    root    absolute folder on the host that the kit owns
    """

    def __init__(self, name: str, root: str, open_link: Callable[[], Any]):
        self.name, self.root, self.accepted = name, root, None
        self._asked_root, self._open_link = root, open_link
        self._lock = threading.RLock()
        self._short: Any = None
        self._long: list[list[Any]] = []            # [link, streams in use]
        self._slots = threading.BoundedSemaphore(SLOTS)
        self._files: list[tuple[Any, Any]] = []     # at most one idle (link, SFTP client), never shared
        self._tunnels: dict[int, Tunnel] = {}
        self._closed = True

    def __repr__(self) -> str:
        short = self._short
        state = "closed" if self._closed else "connected" if short is not None and short.alive else "not connected"
        return f"SshHost({self.name!r}, {state})"

    # -- connections

    def open(self, accept: str | None = None) -> None:
        """Connect, unless a live connection is there."""
        with self._lock:
            self.accepted, self._closed = accept or self.accepted, False
            self._link()
            if not self.root.startswith("/"):
                with self._sftp("find the home folder") as files:
                    self.root = posixpath.join(files.normalize("."), self._asked_root.removeprefix("~").lstrip("/"))

    def _link(self) -> Any:
        """The connection for commands, opened anew where it died."""
        with self._lock:
            if self._closed:
                raise HostError("this host object was closed", where=self.name, next=f'kit.connect("{self.name}")')
            if self._short is None or not self._short.alive:
                self._drop(self._short)
                self._short = None
                self._short = self._open_link()
            return self._short

    @contextmanager
    def _roomy(self) -> Iterator[Any]:
        """A connection for something long, with room for one more session."""
        with self._lock:
            self._link()                # says so when closed
            for seat in [s for s in self._long if not s[0].alive]:
                self._long.remove(seat)
                self._drop(seat[0])
            seat = next((s for s in self._long if s[1] < SLOTS), None)
            if seat is None:
                seat = [self._open_link(), 0]
                self._long.append(seat)
            seat[1] += 1
        try:
            yield seat[0]
        finally:
            with self._lock:
                seat[1] -= 1
                if not seat[1] and seat in self._long[1:]:
                    self._long.remove(seat)
                    self._drop(seat[0])

    def _drop(self, link: Any) -> None:
        if link is not None:
            self._files = [(owner, f) for owner, f in self._files if owner is not link]
            link.close()

    def close(self) -> None:
        """End tunnels, streams and connections; `kit.connect` opens the same object again."""
        with self._lock:
            self._closed = True
            for tunnel in self._tunnels.values():
                tunnel.close()
            self._tunnels.clear()
            links, self._short, self._long = [self._short, *(s[0] for s in self._long)], None, []
            for link in links:
                self._drop(link)

    # -- commands

    def run(self, command: Command) -> Result:
        """One command to its end. `exit` None: the link broke, or no answer came long after its limit.

        Death by signal n is exit 128 + n. A command that was never sent raises instead.
        """
        until = None if command.limit_s is None else time.monotonic() + command.limit_s + GRACE_S
        with self._slots:
            link = self._link()
            with link.explained(_short(command)):
                channel = self._started(link, command)
            try:
                exit_, out, err = channels.collect(channel, command.stdin, until)
            except channels.TooMuch:
                raise HostError(f"{_short(command)}: said more than {channels.MOST >> 20} MiB", where=self.name,
                                next="write it to a file, or use stream()") from None
            finally:
                channel.close()
        return Result(command, exit_, out, err, self.name)

    def _started(self, link: Any, command: Command) -> Any:
        channel = link.session()
        channel.exec_command(command.shell().encode("utf-8", "surrogateescape"))
        return channel

    @contextmanager
    def stream(self, command: Command) -> Iterator[Iterator[bytes]]:
        """Chunks of a long command's stdout as they come; leaving the context closes its channel.

        A broken link raises LinkLost while iterating, a bad end CommandError. sshd
        kills nothing when a channel closes: the command gets SIGPIPE at its next
        write, and end-of-file on its stdin (open until then, unless it has `stdin` bytes).
        """
        with self._roomy() as link:
            with link.explained(_short(command)):
                channel = self._started(link, command)
            try:
                yield self._chunks(link, channel, command)
            finally:
                channel.close()

    def _chunks(self, link: Any, channel: Any, command: Command) -> Iterator[bytes]:
        complaint = b""
        for which, chunk in channels.converse(channel, command.stdin, hold_stdin=True):
            if which == 1:
                yield chunk
            else:
                complaint = (complaint + chunk)[-4096:]
        Result(command, channels.exit_code(channel), b"", complaint, self.name).check()

    # -- files

    @contextmanager
    def _sftp(self, doing: str) -> Iterator[Any]:
        """An SFTP client for this caller alone; one idle client is kept."""
        with self._slots:
            link = self._link()
            with link.explained(doing):
                with self._lock:
                    idle = next((pair for pair in self._files if pair[0] is link), None)
                    if idle:
                        self._files.remove(idle)
                client = idle[1] if idle else link.sftp()
                try:
                    yield client
                except (OSError, sftp.Short):
                    client.close()
                    raise
                with self._lock:
                    keep = not self._files and link is self._short
                    if keep:
                        self._files.append((link, client))
                if not keep:
                    client.close()

    def read(self, path: str, offset: int = 0, size: int | None = None) -> bytes:
        """Bytes of a file; NoSuchFile (also a FileNotFoundError) when it is not there."""
        with self._sftp(f"read {path}") as files:
            return sftp.read(files, path, offset, size)

    def write(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Atomic: a reader sees the old file or the new one. Makes the folders."""
        with self._space(path, len(data)), self._sftp(f"write {path}") as files:
            sftp.write(files, path, data, mode)

    def put(self, local: str, path: str, progress: Progress | None = None) -> None:
        """Send a file to `path`, continuing what is already there (append from its size)."""
        total = os.path.getsize(local)
        with self._space(path, total), self._transfer(f"send {local} to {path}") as files:
            have = sftp.size(files, path) or 0
            if total - have > 1 << 20:
                self._require_space(path, total - have)
            sftp.put(files, local, path, progress)

    def get(self, path: str, local: str, progress: Progress | None = None) -> None:
        """Bring a file here, continuing what is already there."""
        with self._transfer(f"get {path} to {local}") as files:
            sftp.get(files, path, local, progress)

    @contextmanager
    def _transfer(self, doing: str) -> Iterator[Any]:
        with self._roomy() as link, link.explained(doing):
            client = link.sftp()
            try:
                yield client
            finally:
                client.close()

    @contextmanager
    def _space(self, path: str, need: int) -> Iterator[None]:
        """SFTP has no word for a full disk: where a write failed, look at the disk."""
        try:
            yield
        except sftp.Short:
            self._require_space(path, need)
            raise HostError("fewer bytes arrived than were sent", where=f"{self.name}:{path}",
                            next="look at the disk and its quota, then again") from None
        except LinkLost:
            raise
        except HostError:
            self._require_space(path, min(need, 1 << 20))
            raise

    def _require_space(self, path: str, need: int) -> None:
        free = self._free(path)
        if free is not None and free < need:
            raise NoSpace(f"{path}: {need} bytes to write, {free} bytes free", where=self.name,
                          next="free some space there, then again: it goes on from where it stopped")

    def _free(self, path: str) -> int | None:
        """Free bytes of the disk that holds `path`, or its nearest folder that exists."""
        while path not in ("", "/"):
            result = self.run(Command(("df", "-Pk", "--", path)))
            if result.exit == 0:
                return int(result.text.splitlines()[-1].split()[-3]) * 1024
            path = posixpath.dirname(path)
        return None

    # -- ports

    def _tcp(self, port: int) -> tuple[Any, Any]:
        with self._roomy() as link:     # the seat is given back at once: TCP channels are not counted by sshd
            with link.explained(f"reach port {port}"):
                return link, link.tcp(port)

    def http(self, port: int, path: str, body: bytes | None = None, timeout_s: float = 10.0) -> Http:
        """GET (POST where there is a body) to 127.0.0.1:port on the host.

        status 0: nobody listens, or it hung up without an answer. No answer in time: CommandTimeout.
        """
        try:
            link, channel = self._tcp(port)
        except Refused:
            return Http(0)
        with link.explained(f"{path} of port {port}"):
            try:
                return channels.ask(channel, port, path, body, timeout_s)
            except channels.TooMuch:
                raise HostError(f"{path} of port {port}: more than {channels.MOST >> 20} MiB", where=self.name,
                                next="ask for less") from None
            finally:
                channel.close()

    def forward(self, port: int) -> int:
        """A port on this machine's loopback that leads to the host's loopback `port`; the same one each time."""
        with self._lock:
            self._link()
            if port not in self._tunnels:
                self._tunnels[port] = Tunnel(lambda: self._tcp(port)[1], (Refused, KitError))
            return self._tunnels[port].port


def _short(command: Command) -> str:
    return " ".join(command.argv[:3])[:80]
