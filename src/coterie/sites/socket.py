"""The Unix socket on which a site process answers its courier.

Each connection carries one request and one reply. Both are 8 bytes with the length, lowest byte first, and then the
bytes themselves.
"""

import os
import shutil
import signal
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from coterie.errors import UserError

LENGTH = struct.Struct("<Q")
LIMIT = 4 << 30
"""Largest message that is read, in bytes."""


class Stopped(BaseException):
    """A signal that asks this process to end."""


def serve(path: Path, handler: Callable[[bytes], bytes], group: str | None = None) -> None:
    """Answer requests at the socket `path`, one at a time, until SIGTERM or SIGINT.

    A signal stops the handler where it is, so `handler` has to leave the disk in order at any moment, as for a power
    failure. An exception of the handler ends `serve`; the courier asks again when the socket is back. The folder of the
    socket is for its owner only; with `group`, members of that group can use the socket.
    Only the main thread can serve.
    """
    os.umask(0o077)
    with _stoppable(), _listening(path, group) as server:
        while True:
            connection, _ = server.accept()
            with connection:
                try:
                    request = receive(connection, LIMIT)
                except (OSError, ValueError):
                    continue  # the courier was stopped; it asks again
                reply = handler(request)
                try:
                    send(connection, reply)
                except OSError:
                    continue


def send(connection: socket.socket, content: bytes) -> None:
    """Send bytes after their length."""
    connection.sendall(LENGTH.pack(len(content)))
    connection.sendall(content)


def receive(connection: socket.socket, limit: int, hopeless: Callable[[], bool] = bool) -> bytes:
    """Receive bytes after their length. Raises ValueError if they end early or are more than `limit`.

    If the socket has a timeout, it is not the end, unless `hopeless` returns True by then.
    """
    (length,) = LENGTH.unpack(_exactly(connection, LENGTH.size, hopeless))
    if length > limit:
        raise ValueError(f"a message of {length} bytes, more than {limit}")
    return _exactly(connection, length, hopeless)


def exchange(path: Path, request: bytes, hopeless: Callable[[], bool]) -> bytes:
    """Send a request to the socket `path`, and return the reply. Raises TimeoutError as soon as it is `hopeless`."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        send(connection, request)
        connection.settimeout(1.0)
        return receive(connection, LIMIT, hopeless)


def _exactly(connection: socket.socket, length: int, hopeless: Callable[[], bool]) -> bytes:
    content = bytearray()
    while len(content) < length:
        try:
            part = connection.recv(min(length - len(content), 1 << 20))
        except TimeoutError:
            if hopeless():
                raise
            continue
        if not part:
            raise ValueError("the connection ended in the middle of a message")
        content += part
    return bytes(content)


@contextmanager
def _stoppable() -> Iterator[None]:
    """End the block without an error at SIGTERM or SIGINT."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise Stopped

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    except Stopped:
        pass
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _listening(path: Path, group: str | None) -> Iterator[socket.socket]:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.parent.chmod(0o700 if group is None else 0o2750)
    _remove_stale(path)
    with socket.socket(socket.AF_UNIX) as server:
        try:
            server.bind(str(path))
        except OSError as error:
            raise UserError(
                f"cannot open the socket {path}: {error}; choose a state folder with a shorter path"
            ) from None
        if group is not None:
            try:
                shutil.chown(path.parent, group=group)
                path.parent.chmod(0o2750)  # changing the group clears the bit that hands it down
                shutil.chown(path, group=group)
            except (LookupError, OSError) as error:
                raise UserError(f"cannot give {path} to the group {group}: {error}; is this user a member?") from None
        path.chmod(0o600 if group is None else 0o660)
        server.listen(8)
        try:
            yield server
        finally:
            path.unlink(missing_ok=True)


def _remove_stale(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink(missing_ok=True)
            return
    raise UserError(f"another process answers at {path} already; end it, or use another state folder")
