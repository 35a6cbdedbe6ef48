"""A TCP proxy that makes a network slow or silent: the kernel's netem is not everywhere.

    with Proxy(2211, ("10.99.0.11", 22)) as proxy:
        proxy.delay_s = 0.2         # each way, for bytes that come from now on
        proxy.silent = True         # bytes of both ways vanish; the connections stay open
        proxy.reset()               # every connection ends with a TCP reset
"""

import queue
import socket
import struct
import threading
import time
from contextlib import suppress

CHUNK = 1 << 16


class Proxy:
    def __init__(self, port, target, delay_s=0.0):
        self.target, self.delay_s, self.silent = target, delay_s, False
        self._sockets = set()
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port = self._listener.getsockname()[1]
        self._thread(self._accept)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        with suppress(OSError):     # wakes accept()
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.reset()

    def reset(self):
        """As a stateful firewall or a crashed peer does it."""
        for end in list(self._sockets):
            self._sockets.discard(end)
            with suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                end.shutdown(socket.SHUT_RD)        # wakes the reader, which would keep the socket open
            end.close()

    @staticmethod
    def _thread(work, *args):
        threading.Thread(target=work, args=args, daemon=True).start()

    def _accept(self):
        with suppress(OSError):
            while True:
                self._thread(self._serve, self._listener.accept()[0])

    def _serve(self, client):
        try:
            server = socket.create_connection(self.target, timeout=10)
        except OSError:
            client.close()
            return
        server.settimeout(None)
        for source, sink in ((client, server), (server, client)):
            source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets.add(source)
            late = queue.Queue(256)         # 16 MiB on their way at most
            self._thread(self._read, source, late)
            self._thread(self._write, sink, late)

    def _read(self, source, late):
        data = b"more"
        while data:
            try:
                data = source.recv(CHUNK)
            except OSError:
                data = b""
            if not self.silent:
                late.put((time.monotonic() + self.delay_s, data))

    def _write(self, sink, late):
        with suppress(OSError):             # reset in the meantime
            while True:
                due, data = late.get()
                time.sleep(max(0.0, due - time.monotonic()))
                if not data:
                    sink.shutdown(socket.SHUT_WR)
                    return
                sink.sendall(data)
