"""What can be done on a host behind SSH: the `Host` protocol over connections that `kit.host` opens.

Commands and small files share one connection, streams, transfers and tunnels
use others, so neither keeps the other waiting. sshd takes 10 sessions on a
connection (MaxSessions); at most 8 commands go at once, further ones wait.
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
from kit.command import Command, Result, Secret
from kit.errors import HostError, KitError, LinkLost
from kit.seams import Http, Progress
from kit.tunnel import Tunnel

SLOTS = 8
GRACE_S = 35.0          # beyond a command's own limit: 5 s for KILL, and a slow network
TICK_S = 0.5


class Refused(Exception):
    """Nobody listens on that port."""

class SshHost:
    """A machine behind SSH; safe to use from many threads. Get one with `kit.connect`.

    name    as it was asked for
    root    absolute folder on the host that the kit owns
    """

    def __init__(self, name: str, root: str, open_link: Callable[[], Any]):
        self.name, self.root, self.accepted = name, root, None
        self.sudo_password: Secret | None = None
        self._asked_root, self._open_link = root, open_link
        self._lock = threading.RLock()
        self._short: Any = None
        self._long: list[list[Any]] = []            # [link, streams in use]
        self._slots = threading.BoundedSemaphore(SLOTS)
        self._files: list[tuple[Any, Any]] = []     # at most one idle (link, SFTP client), never shared
        self._tunnels: dict[int, Tunnel] = {}
        self._closed = True

    def __repr__(self) -> str:
        state = "closed" if self._closed else "connected" if self._short and self._short.alive else "not connected"
        return f"SshHost({self.name!r}, {state})"

    user = property(lambda self: self._link().user, doc="Who logs in there.")

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
            while self._tunnels:
                self._tunnels.popitem()[1].close()
            links, self._short, self._long = [self._short, *(s[0] for s in self._long)], None, []
            for link in links:
                self._drop(link)

    # -- commands

    def run(self, command: Command) -> Result:
        """One command to its end. `exit` None: the link broke, or no answer came long after its limit.

        Death by signal n is exit 128 + n. A command that was never sent raises instead.
        """
        until = None if command.limit_s is None else time.monotonic() + command.limit_s + GRACE_S
        line, stdin = command.typed(self.sudo_password)
        with self._slots:
            link, channel = self._session(_short(command))
            try:
                with link.explained(_short(command)):
                    channel.exec_command(line)
                    exit_, out, err = channels.collect(channel, stdin, until)
            except channels.TooMuch:
                raise HostError(f"{_short(command)}: said more than {channels.MOST >> 20} MiB", where=self.name,
                                next="write it to a file, or use stream()") from None
            finally:
                link.hang_up(channel)
        return Result(command, exit_, out, err, self.name)

    def _session(self, doing: str) -> tuple[Any, Any]:
        """A channel on the command connection; a death that nobody had noticed yet is mended once."""
        for last in (False, True):
            link = self._link()
            try:
                with link.explained(doing):
                    return link, link.session()
            except LinkLost:
                if last:
                    raise

    @contextmanager
    def stream(self, command: Command) -> Iterator[Iterator[bytes]]:
        """Chunks of a long command's stdout as they come; leaving the context closes its channel.

        Half a second of silence yields b"", so that a reader can be cancelled.

        A broken link raises LinkLost while iterating, a bad end CommandError. sshd
        kills nothing when a channel closes: the command gets SIGPIPE at its next
        write, and end-of-file on its stdin (open until then, unless it has `stdin` bytes).
        """
        with self._roomy() as link:
            with link.explained(_short(command)):
                (line, stdin), channel = command.typed(self.sudo_password), link.session()
                channel.exec_command(line)
            try:
                yield self._chunks(channel, command, stdin)
            finally:
                link.hang_up(channel)

    def _chunks(self, channel: Any, command: Command, stdin: bytes) -> Iterator[bytes]:
        complaint = b""
        for which, chunk in channels.converse(channel, stdin, hold_stdin=True, tick_s=TICK_S):
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
                except BaseException:
                    link.hang_up(client)
                    raise
                with self._lock:
                    if not self._files and link is self._short:
                        self._files.append((link, client))
                    else:
                        link.hang_up(client)

    def read(self, path: str, offset: int = 0, size: int | None = None) -> bytes:
        """Bytes of a file; NoSuchFile (also a FileNotFoundError) when it is not there."""
        with self._sftp(f"read {path}") as files:
            data = sftp.read(files, path, offset, size)
        if data is None:
            data = bytearray()
            with self.stream(sftp.tail(path, offset)) as chunks:
                while (size is None or len(data) < size) and (chunk := next(chunks, b"")):
                    data += chunk
        return bytes(data[:size])

    def write(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Atomic: a reader sees the old file or the new one. Makes the folders."""
        with sftp.full_disk_named(self, path, len(data)), self._sftp(f"write {path}") as files:
            sftp.write(files, path, data, mode)

    def put(self, local: str, path: str, progress: Progress | None = None) -> None:
        """Send a file to `path`, continuing what is already there (append from its size)."""
        try:
            total = os.path.getsize(local)
        except OSError as err:
            raise HostError(f"send {local}: {err.strerror}", where="this machine", next="check the path") from None
        left = min(total, 1 << 20)      # what was sent stays there
        with sftp.full_disk_named(self, path, left), self._roomy() as link, link.explained(f"send {local} to {path}"):
            files = link.sftp()
            try:
                need = total - (sftp.size(files, path) or 0)
                if need > 1 << 20:
                    sftp.require_space(self, path, need)
                sftp.put(files, local, path, progress)
            finally:
                link.hang_up(files)

    def get(self, path: str, local: str, progress: Progress | None = None) -> None:
        """Bring a file here, continuing what is already there."""
        with self._sftp(f"get {path}") as files:
            about = files.stat(path)
        with self._link().explained(f"get {path} to {local}"):
            sftp.get(self, about, path, local, progress)

    # -- ports

    def _tcp(self, port: int) -> tuple[Any, Any]:
        with self._lock:        # the first long connection is never dropped, and sshd counts no TCP channels
            if not (self._long and self._long[0][0].alive):
                with self._roomy():
                    pass
            link = self._long[0][0]
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
                link.hang_up(channel)

    def forward(self, port: int) -> int:
        """A port on this machine's loopback that leads to the host's loopback `port`; the same one each time."""
        with self._lock:
            self._link()
            if port not in self._tunnels:
                self._tunnels[port] = Tunnel(lambda: self._tcp(port)[1], (Refused, KitError))
            return self._tunnels[port].port


def _short(command: Command) -> str:
    return " ".join(command.argv[:3])[:80]
