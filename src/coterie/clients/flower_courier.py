"""A site's courier: it carries messages between Flower and the site process, and nothing else.

It is a node that speaks Flower's Fleet API to a SuperLink. It has a key and a network connection, but no data and no
PyTorch, and it runs nothing that it is sent. Run as a script, with `python -I`, and without Coterie. Each line on
stdout is an event in JSON with a sentence in `text`. Exit codes are in `flower_command.py`.

Two rules keep a killed courier from costing a round its deadline:

1. A message is on disk before its receipt is confirmed, and stays there until its reply is sent. A courier that finds
   one when it starts returns to the network by a heartbeat, without activating its node, and carries on.
2. A courier that holds no message activates its node when it starts. The server sees the time of the last activation,
   and then asks again what it has asked this node before. The courier does the same after a call in which a message may
   have been lost.
"""

import argparse
import fcntl
import json
import os
import signal
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, NoReturn

import httpx
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Array, ArrayRecord, Error, RecordDict
from flwr.app.message import make_message
from flwr.app.metadata import Metadata
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.run_pb2 import GetRunRequest
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, push_objects
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

FLOWER = "1.41.0"
ACCEPTED = "2be295aacb9db7835d9174a46dadfd4c2fa7aaa14580f18672d4e7cea784b0a9"
"""Digest of the only bundle whose runs are served. A test compares it with `flower_stub.digest`."""
REFUSED, TOO_LARGE = 11, 12
"""Codes of our own in Flower's error replies."""
POLL = 0.2
"""Seconds between two questions for a message."""
LEASE = 15.0
"""Heartbeat interval that the SuperLink is told. After twice this time without one, the node counts as gone."""
BEAT = 5.0
STALLED = 30.0
"""Seconds without any new part of a message after which it is given up, and asked for again."""
LENGTH = struct.Struct("<Q")

UNKNOWN, REMOVED, WRONG_CA, EXPIRED, WRONG_NAME, NO_TLS, NEEDS_TLS = 10, 11, 12, 13, 14, 15, 16
IN_USE, BAD_FILE, WRONG_FLOWER, NOT_COTERIE, WRONG_CLOCK = 17, 18, 19, 20, 21


class LostError(Exception):
    """A call failed in a way in which a message may have been lost, or is refused by now."""


class Held(NamedTuple):
    """A message that is being carried."""

    head: dict[str, Any]
    content: bytes

    @property
    def until(self) -> float:
        """Time at which nobody waits for the reply any more, by this machine's clock."""
        return float(self.head["received"] + self.head["ttl"])


def tell(event: str, text: str, **values: Any) -> None:
    """Write an event to stdout."""
    print(json.dumps({"event": event, "text": text, **values}), flush=True)


def leave(code: int, text: str) -> NoReturn:
    """End this process with a reason that does not go away by itself."""
    tell("refused", text, code=code)
    raise SystemExit(code)


class Store:
    """The folder of a courier: its lock, its node id and the message that it holds."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder = folder
        self._lock = (folder / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            leave(IN_USE, f"another courier uses {folder} already; end it first")

    def node(self) -> int | None:
        """Return the id that the SuperLink gave this node last."""
        try:
            return int((self._folder / "node").read_text())
        except (FileNotFoundError, ValueError):
            return None

    def set_node(self, node: int) -> None:
        """Keep the id of this node."""
        self._write("node", str(node).encode())

    def held(self) -> Held | None:
        """Return the message that was being carried when this courier ended, if somebody still waits for its reply."""
        try:
            head, _, content = (self._folder / "held").read_bytes().partition(b"\n")
            found = Held(json.loads(head), content)
        except (FileNotFoundError, ValueError):
            return None
        return found if found.until > time.time() else None

    def hold(self, held: Held) -> None:
        """Keep a message until `release`."""
        self._write("held", json.dumps(held.head).encode() + b"\n" + held.content)

    def release(self) -> None:
        """Forget the message."""
        (self._folder / "held").unlink(missing_ok=True)

    def _write(self, name: str, content: bytes) -> None:
        new = self._folder / f"{name}.new"
        with new.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        new.replace(self._folder / name)
        folder = os.open(self._folder, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)


class Courier:
    """A node of Flower for one site."""

    def __init__(self, client: Any, key: bytes, store: Store, path: Path, limit: int) -> None:
        self._client, self._key, self._store, self._path, self._limit = client, key, store, path, limit
        self._node = Node()
        self._bundles: dict[int, str] = {}
        self._expelled = threading.Event()
        self._was_connected = store.node() is not None

    def work(self) -> NoReturn:
        """Carry messages until this process is stopped."""
        held = self._connect()
        with self._beating():
            while True:
                try:
                    if held is not None:
                        self._carry(held)
                    self._store.release()
                    held = self._next()
                    if held is None:
                        time.sleep(POLL)
                except LostError as lost:
                    tell("asked again", f"asked the server to send again what this site holds: {lost}")
                    self._store.release()
                    self._activate()
                    held = None

    def _connect(self) -> Held | None:
        """Return to the network. A message that is on disk is returned, unless it is too late for it."""
        held, node = self._store.held(), self._store.node()
        if held is not None and node is not None:
            self._node = Node(node_id=node)
            if self._beat():
                tell("connected", "connected again, and carrying the message that was held", node=node)
                return held
        self._activate()
        return None

    def _activate(self) -> None:
        """Tell the server that this node is here and holds no message."""
        node = self._store.node()
        if node is not None:  # else the node counts as online until the lease of a killed courier ends
            with suppress(httpx.HTTPStatusError):
                self._call(self._client.DeactivateNode, DeactivateNodeRequest(node_id=node))
        try:
            request = ActivateNodeRequest(public_key=self._key, heartbeat_interval=LEASE)
            node = int(self._call(self._client.ActivateNode, request).node_id)
        except httpx.HTTPStatusError as error:
            self._not_admitted(error)
        self._node = Node(node_id=node)
        self._store.set_node(int(node))
        self._was_connected = True
        self._expelled.clear()
        tell("connected", "connected to the server", node=node)

    def _not_admitted(self, error: httpx.HTTPStatusError) -> NoReturn:
        code = flower_code(error.response)
        if code is None and error.response.status_code == 401:
            leave(WRONG_CLOCK, "the server refused the signature: is this machine's clock right, and is this the key?")
        if code is None:
            leave(NOT_COTERIE, f"this is not a server of Coterie: it answered {error.response.status_code}")
        if self._was_connected:
            leave(REMOVED, "the server no longer accepts this key: it was removed, or is used by another courier")
        leave(UNKNOWN, "the server does not know this key, or another courier uses it: ask for `coterie sites add`")

    def _next(self) -> Held | None:
        """Return the next message, with all its bytes, after it is on disk."""
        got = self._call(self._client.PullMessages, PullMessagesRequest(node=self._node), may_lose=True)
        if not got.messages_list:
            return None
        meta = got.messages_list[0].metadata
        head = {
            "id": got.message_object_trees[0].object_id,
            "run": meta.run_id,
            "from": meta.src_node_id,
            "group": meta.group_id,
            "created": meta.created_at,
            "ttl": meta.ttl,
            "type": meta.message_type,
            "received": time.time(),
        }
        if not self._accepts(meta.run_id):
            self._reply(head, Error(code=REFUSED, reason="this run is not one of Coterie, or of another version"))
            return None
        held = Held(head, self._fetch(head, got.message_object_trees[0]))
        if len(held.content) > self._limit:
            self._reply(head, Error(code=TOO_LARGE, reason=f"a request of more than {self._limit} bytes"))
            return None
        self._store.hold(held)
        request = ConfirmMessageReceivedRequest(node=self._node, run_id=meta.run_id, message_object_id=head["id"])
        self._call(self._client.ConfirmMessageReceived, request)
        return held

    def _accepts(self, run: int) -> bool:
        """Return whether a run has the only bundle that is served. The bundle itself is never fetched."""
        if run not in self._bundles:
            answer = self._call(self._client.GetRun, GetRunRequest(node=self._node, run_id=run))
            self._bundles[run] = answer.run.fab_hash
            if self._bundles[run] != ACCEPTED:
                tell("refused run", "refused a run that is not one of Coterie, or of another version", run=run)
        return self._bundles[run] == ACCEPTED

    def _fetch(self, head: dict[str, Any], tree: Any) -> bytes:
        """Return the bytes of a message, as soon as the server has sent all of them."""
        contents: dict[str, bytes] = {}
        patience, pause, size = time.monotonic() + STALLED, 0.02, 0
        for name in dict.fromkeys(each.object_id for each in iterate_object_tree(tree)):
            request = PullObjectRequest(node=self._node, run_id=head["run"], object_id=name)
            while not (got := self._call(self._client.PullObject, request)).object_available:
                if not got.object_found or time.monotonic() > patience:
                    raise LostError("a part of a message did not come")
                time.sleep(pause)
                pause = min(2 * pause, 0.5)
            patience, pause, size = time.monotonic() + STALLED, 0.02, size + len(got.object_content)
            if size > self._limit + (1 << 20):
                return bytes(self._limit + 1)
            contents[name] = got.object_content
        message: Any = inflate_object_from_contents(head["id"], contents)
        return bytes(message.content["payload"]["bytes"].data)

    def _carry(self, held: Held) -> None:
        """Bring a message to the site process, and its reply to the server."""
        reply = self._ask_site(held)
        if reply is None:
            tell("late", "the site process did not answer in time")
        elif len(reply) > self._limit:
            self._reply(held.head, Error(code=TOO_LARGE, reason=f"a reply of more than {self._limit} bytes"))
        else:
            array = Array(dtype="uint8", shape=(len(reply),), stype="bytes", data=reply)
            self._reply(held.head, RecordDict({"payload": ArrayRecord({"bytes": array})}))
            tell("carried", "carried a reply", bytes=len(reply))

    def _ask_site(self, held: Held) -> bytes | None:
        """Return the site process's reply. While there is no such process, wait for it."""
        pause, told = 0.05, False
        while time.time() < held.until:
            try:
                return exchange(self._path, held.content, lambda: time.time() > held.until or self._leaves())
            except TimeoutError:
                return None
            except (OSError, ValueError) as error:
                if not told:
                    tell("waiting", f"waiting for the site process: {error}")
                told = True
                time.sleep(pause)
                pause = min(2 * pause, 1.0)
        return None

    def _leaves(self) -> bool:
        if self._expelled.is_set():
            raise LostError("the server no longer accepts this node")
        return False

    def _reply(self, head: dict[str, Any], content: Any) -> None:
        """Send a reply. Its times are those of the question, so that this machine's clock does not matter."""
        metadata = Metadata(
            run_id=head["run"],
            message_id="",
            src_node_id=self._node.node_id,
            dst_node_id=head["from"],
            reply_to_message_id=head["id"],
            group_id=head["group"],
            created_at=head["created"],
            ttl=head["ttl"],
            message_type=head["type"],
        )
        is_error = isinstance(content, Error)
        message = make_message(metadata, error=content) if is_error else make_message(metadata, content)
        message.metadata.__dict__["_message_id"] = message.object_id
        bare = message if is_error else make_message(metadata, RecordDict())
        with no_object_id_recompute():
            request = PushMessagesRequest(
                node=self._node,
                messages_list=[message_to_proto(bare)],
                message_object_trees=[get_object_tree(message)],
                clientapp_runtime_list=[0.0],
            )
            answer = self._call(self._client.PushMessages, request)
            if not answer.objects_to_push:
                raise LostError("nobody waits for this reply any more")

            def push(name: str, part: bytes) -> None:
                args = {"node": self._node, "run_id": head["run"], "session_id": answer.session_id, "object_id": name}
                if not self._call(self._client.PushObject, PushObjectRequest(object_content=part, **args)).stored:
                    raise LostError("nobody waits for this reply any more")

            push_objects(get_all_nested_objects(message), push, object_ids_to_push=set(answer.objects_to_push))

    def _call(self, method: Callable[[Any], Any], request: Any, may_lose: bool = False) -> Any:
        """Call the server, with growing pauses while it cannot be reached."""
        pause = 0.1
        while True:
            try:
                return method(request)
            except (httpx.TransportError, httpx.HTTPStatusError) as error:
                status = error.response.status_code if isinstance(error, httpx.HTTPStatusError) else None
                if status in (401, 403) and method.__name__ not in ("ActivateNode", "DeactivateNode"):
                    raise LostError(f"the server refused {method.__name__}: {status}") from None
                if status is not None and status not in (502, 503, 504):
                    raise
                if may_lose and not (status == 503 or isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)):
                    self._wait_for_server()
                    raise LostError("the connection broke") from None
            if pause == 0.1:
                tell("waiting", "waiting for the server")
            time.sleep(pause)
            pause = min(1.5 * pause, 3.0)

    def _wait_for_server(self) -> None:
        request = SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=LEASE)
        with suppress(httpx.HTTPStatusError, LostError):
            self._call(self._client.SendNodeHeartbeat, request)

    def _beat(self) -> bool:
        """Send a heartbeat. Returns whether the server accepts this node."""
        try:
            request = SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=LEASE)
            return bool(self._call(self._client.SendNodeHeartbeat, request).success)
        except (LostError, httpx.HTTPStatusError):
            return False

    @contextmanager
    def _beating(self) -> Iterator[None]:
        """Send heartbeats, and give the lease back in the end."""
        stop = threading.Event()

        def beat() -> None:
            while not stop.wait(BEAT):
                try:
                    request = SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=LEASE)
                    self._client.SendNodeHeartbeat(request)
                except httpx.HTTPStatusError as error:
                    if error.response.status_code == 401:
                        self._expelled.set()
                except httpx.TransportError:
                    continue  # the calls of the main thread tell about it

        threading.Thread(target=beat, daemon=True).start()
        try:
            yield
        finally:
            stop.set()
            with suppress(httpx.HTTPError):
                self._client._client.timeout = 2.0
                self._client.DeactivateNode(DeactivateNodeRequest(node_id=self._node.node_id))


def flower_code(response: httpx.Response) -> int | None:
    """Return Flower's own error code, if the answer comes from Flower."""
    try:
        return int(response.json()["code"])
    except (ValueError, KeyError, TypeError):
        return None


def exchange(path: Path, content: bytes, hopeless: Callable[[], bool]) -> bytes:
    """Send bytes to the site process, and return its reply. Raises TimeoutError as soon as it is `hopeless`."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        connection.sendall(LENGTH.pack(len(content)))
        connection.sendall(content)
        connection.settimeout(1.0)
        (length,) = LENGTH.unpack(exactly(connection, LENGTH.size, hopeless))
        return exactly(connection, length, hopeless)


def exactly(connection: socket.socket, length: int, hopeless: Callable[[], bool]) -> bytes:
    """Receive this number of bytes."""
    content = bytearray()
    while len(content) < length:
        try:
            part = connection.recv(min(length - len(content), 1 << 20))
        except TimeoutError:
            if hopeless():
                raise
            continue
        if not part:
            raise ValueError("it ended in the middle of a reply")
        content += part
    return bytes(content)


def probe(server: str, ca: Path | None) -> None:
    """Wait for the server, and leave with a sentence if it and this courier do not agree about TLS."""
    host, _, port = server.rpartition(":")
    host, pause, told = host.strip("[]"), 0.1, False
    while True:
        try:
            with socket.create_connection((host, int(port)), timeout=10) as raw:
                return probe_plain(raw) if ca is None else probe_tls(raw, host, ca)
        except (OSError, ssl.SSLEOFError) as error:
            if not told:
                tell("waiting", f"waiting for the server at {server}: {error}")
            told = True
        time.sleep(pause)
        pause = min(1.5 * pause, 3.0)


def probe_plain(raw: socket.socket) -> None:
    """Leave if the server does not speak HTTP without TLS."""
    raw.sendall(b"GET / HTTP/1.0\r\n\r\n")
    if raw.recv(5) != b"HTTP/":
        leave(NEEDS_TLS, "the server uses TLS: start with --ca and its CA certificate instead of --insecure")


def probe_tls(raw: socket.socket, host: str, ca: Path) -> None:
    """Leave if the server has no certificate of this CA for this name."""
    try:
        context = ssl.create_default_context(cafile=str(ca))
    except (OSError, ssl.SSLError) as error:
        leave(BAD_FILE, f"cannot read the CA certificate {ca}: {error}")
    try:
        with context.wrap_socket(raw, server_hostname=host):
            return
    except ssl.SSLCertVerificationError as error:
        why = error.verify_message
        if error.verify_code in (9, 10):
            leave(EXPIRED, f"the server's certificate is not valid today: {why}; are the clocks right?")
        if error.verify_code in (62, 64):
            leave(WRONG_NAME, f"the server's certificate is not for {host}: {why}")
        leave(WRONG_CA, f"the server's certificate is not signed by {ca}: {why}")
    except ssl.SSLEOFError:
        raise
    except ssl.SSLError as error:
        leave(NO_TLS, f"the server does not use TLS ({error.reason}): is this the right address?")


def load_key(file: Path) -> Any:
    """Load a private key, in OpenSSH or PEM form."""
    try:
        content = file.read_bytes()
        load = serialization.load_ssh_private_key if b"OPENSSH" in content else serialization.load_pem_private_key
        key: Any = load(content, password=None)
    except (OSError, ValueError, TypeError) as error:
        leave(BAD_FILE, f"cannot read the key {file}: {error}")
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        leave(BAD_FILE, f"{file} is not an EC key, as `coterie certs site` makes it")
    return key


def stop(_number: int, _frame: FrameType | None) -> NoReturn:
    """End in order."""
    raise SystemExit(0)


def main() -> None:
    """Connect a site."""
    parser = argparse.ArgumentParser(description="Carry messages between a Coterie server and a site process.")
    parser.add_argument("--server", required=True, help="HOST:PORT")
    parser.add_argument("--key", type=Path, required=True, help="the site's private key")
    security = parser.add_mutually_exclusive_group(required=True)
    security.add_argument("--ca", type=Path, help="certificate of the CA that signed the server's")
    security.add_argument("--insecure", action="store_true", help="without TLS")
    parser.add_argument("--socket", type=Path, required=True, help="socket of the site process")
    parser.add_argument("--state", type=Path, required=True, help="a folder of its own")
    parser.add_argument("--limit", type=int, default=4 << 30, help="largest message in bytes")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    os.umask(0o077)
    if version("flwr") != FLOWER:
        leave(WRONG_FLOWER, f"this courier needs Flower {FLOWER}, but {version('flwr')} is installed")
    store, key = Store(args.state), load_key(args.key)
    probe(args.server, args.ca)
    client = FleetHttpClient.from_server_address(
        args.server,
        args.insecure,
        None if args.insecure else args.ca.read_bytes(),
        interceptors=[NodeAuthHttpInterceptor(key, key.public_key())],
    )
    Courier(client, public_key_to_bytes(key.public_key()), store, args.socket, args.limit).work()


if __name__ == "__main__":
    main()
