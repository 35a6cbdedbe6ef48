"""A port on this machine's loopback that leads through SSH to a port on the host.

Own code and not Fabric's `forward_local`, which is seven times slower and stops
for ever at the first connection that the far side refuses.

    with Tunnel(open_channel) as tunnel: requests.get(f"http://127.0.0.1:{tunnel.port}")
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from typing import Any

CHUNK = 1 << 18


class Tunnel:
    """Listens on 127.0.0.1:`port` until `close()`; each client gets a channel of its own.

    `open_channel()` returns a connected channel, or raises OSError-like errors of
    `refused`; such a client is reset, and the next one is served as ever.
    """

    def __init__(self, open_channel: Callable[[], Any], refused: tuple[type[BaseException], ...]):
        self._open, self._refused = open_channel, refused
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        self._live: set[Any] = set()
        self._lock = threading.Lock()
        self.closed = False
        threading.Thread(target=self._accept, name=f"tunnel-{self.port}", daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            channel = self._open()
        except self._refused:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()      # a reset: what the client would see from a closed port
            return
        with self._lock:
            self._live |= {client, channel}
        back = threading.Thread(target=_pump, args=(channel, client, lambda: client.shutdown(socket.SHUT_WR)),
                                daemon=True)
        back.start()
        _pump(client, channel, channel.shutdown_write)
        back.join()
        client.close()
        channel.close()
        with self._lock:
            self._live -= {client, channel}

    def close(self) -> None:
        """Stop listening and end every connection."""
        self.closed = True
        try:
            self._listener.shutdown(socket.SHUT_RDWR)     # wakes accept(), which close() alone does not
        except OSError:
            pass
        self._listener.close()
        with self._lock:
            live = list(self._live)
        for end in live:
            if isinstance(end, socket.socket):
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
            end.close()

    def __enter__(self) -> Tunnel:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _pump(source: Any, sink: Any, finish: Callable[[], None]) -> None:
    """Copy until the source ends, then say so to the sink; an end that vanished ends both ways."""
    try:
        while chunk := source.recv(CHUNK):
            sink.sendall(chunk)
        finish()
    except (OSError, EOFError):
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except (OSError, EOFError):
                pass
