"""One SSH channel as a command's three streams, or as the socket of an HTTP request.

Works on an open paramiko channel and imports nothing of paramiko. Bytes in and
out are exact; both outputs are drained while stdin is sent, so neither side
can block the other.

A channel must say nothing after its CLOSE: sshd ends the whole connection when
it does ("packet referred to nonexistent channel"). `Wire` keeps that order.
"""

from __future__ import annotations

import http.client
import io
import selectors
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

from kit.seams import Http

CHUNK = 1 << 18
PACKET = 1 << 15            # an SSH packet takes no more
MOST = 64 << 20             # bytes kept of one command's output, or of one HTTP answer


class TooMuch(Exception):
    """The command said more than `MOST` bytes."""


class Wire:
    """A paramiko channel with one sender at a time, closed by its owner only. The rest is the channel's own."""

    def __init__(self, raw: Any):
        self.raw = raw
        raw.answered_by_owner, raw.closed_by_peer = True, False
        self._sending = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)

    def sendall(self, data: bytes) -> None:
        """OSError once either side has closed."""
        view = memoryview(data)
        while view:
            with self._sending:
                if self.raw.closed or self.raw.closed_by_peer:
                    raise OSError("the channel is closed")
                sent = self.raw.send(bytes(view[:PACKET])) if self.raw.send_ready() else 0
            view = view[sent:]
            if not sent:
                time.sleep(0.002)       # the window is full; paramiko offers nothing to wait for without sending

    def shutdown_write(self) -> None:
        with self._sending:
            if not (self.raw.closed or self.raw.closed_by_peer):
                self.raw.shutdown_write()

    def shutdown(self, how: int) -> None:
        self.close()

    def close(self) -> None:
        with self._sending:
            self.raw.close()


def converse(channel: Wire, stdin: bytes, *, hold_stdin: bool = False,
             until: float | None = None, tick_s: float | None = None) -> Iterator[tuple[int, bytes]]:
    """Send stdin and yield (1, stdout chunk) or (2, stderr chunk) until both ended.

    hold_stdin  without bytes to send, stdin stays open: the command sees its end when the channel closes
    until       time.monotonic() at which to give up: TimeoutError
    tick_s      yield (1, b"") after so many seconds of silence
    """
    writer = None
    if len(stdin) > 32768:
        writer = threading.Thread(target=_feed, args=(channel, stdin), daemon=True)
        writer.start()
    elif stdin or not hold_stdin:
        _feed(channel, stdin)
    with selectors.DefaultSelector() as ready:
        ready.register(channel.fileno(), selectors.EVENT_READ)
        while True:
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError
            silent = not ready.select(min((t for t in (left, tick_s) if t is not None), default=None))
            if silent and tick_s is not None:
                yield 1, b""
            over = channel.eof_received or channel.closed       # before the drain: nothing can follow it
            while channel.recv_ready():
                yield 1, channel.recv(CHUNK)
            while channel.recv_stderr_ready():
                yield 2, channel.recv_stderr(CHUNK)
            if over:
                return


def _feed(channel: Wire, stdin: bytes) -> None:
    try:
        channel.sendall(stdin)
        channel.shutdown_write()
    except (OSError, EOFError):
        return          # it ended, or closed its stdin, without reading all: its own affair


def collect(channel: Wire, stdin: bytes, until: float | None) -> tuple[int | None, bytes, bytes]:
    """(exit, stdout, stderr) of a command to its end; exit None when we lost it on the way."""
    said: dict[int, list[bytes]] = {1: [], 2: []}
    size = 0
    try:
        for which, chunk in converse(channel, stdin, until=until):
            said[which].append(chunk)
            size += len(chunk)
            if size > MOST:
                raise TooMuch
        code = exit_code(channel, until)
    except TimeoutError:
        code = None
    return code, b"".join(said[1]), b"".join(said[2])


def exit_code(channel: Wire, until: float | None = None) -> int | None:
    """The exit status; 128 + n after death by signal n, as shells say it; None when neither came."""
    channel.status_event.wait(None if until is None else max(0.0, until - time.monotonic()))
    if channel.exit_status >= 0:
        return channel.exit_status
    name = getattr(channel, "exit_signal", None)
    if name is None:
        return None
    number = getattr(signal, f"SIG{name.removeprefix('SIG')}", None)
    return 128 + int(number) if number else 255


def ask(channel: Wire, port: int, path: str, body: bytes | None, timeout_s: float) -> Http:
    """One HTTP request over a channel; status 0 when the far side hung up without an answer."""
    channel.settimeout(timeout_s)
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.sock = _Socket(channel)
    headers = {"Content-Type": "application/json"} if body is not None else {}
    try:
        connection.request("POST" if body is not None else "GET", path, body, {**headers, "Connection": "close"})
        answer = connection.getresponse()
        data = answer.read(MOST + 1)
    except http.client.HTTPException:
        return Http(0)
    if len(data) > MOST:
        raise TooMuch
    return Http(answer.status, data)


class _Socket:
    """As much of a socket as http.client asks for."""

    def __init__(self, channel: Wire):
        self.sendall, self.close = channel.sendall, lambda: None
        self._channel = channel

    def makefile(self, mode: str, *_: Any) -> io.BufferedReader:
        return io.BufferedReader(_Raw(self._channel), CHUNK)


class _Raw(io.RawIOBase):
    def __init__(self, channel: Wire):
        self._channel = channel

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._channel.recv(len(buffer))
        buffer[:len(data)] = data
        return len(data)
