"""A way between a courier and the server that keeps every byte, in both directions."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Proxy:
    """Passes connections on to a server."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self.up: list[bytearray] = []
        """What the couriers have sent, for each connection."""
        self.down: list[bytearray] = []
        """What they have received."""
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                courier, _ = self._server.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._target)
            except OSError:
                courier.close()
                continue
            self._open += [courier, server]
            for source, target, kept in ((courier, server, self.up), (server, courier, self.down)):
                kept.append(content := bytearray())
                threading.Thread(target=self._pass, args=(source, target, content), daemon=True).start()

    @staticmethod
    def _pass(source: socket.socket, target: socket.socket, kept: bytearray) -> None:
        try:
            while part := source.recv(1 << 16):
                kept += part
                target.sendall(part)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            with suppress(OSError):
                source.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End all connections."""
        for each in (self._server, *self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


@contextmanager
def proxied(target: str) -> Iterator[Proxy]:
    """Listen in front of a server."""
    proxy = Proxy(target)
    try:
        yield proxy
    finally:
        proxy.close()
