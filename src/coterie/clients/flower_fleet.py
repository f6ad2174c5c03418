"""What a courier does at the server: it calls Flower's Fleet API, with patience.

Flower's own connection code is not used, because it waits for ever for a server that does not speak TLS, sends signals
to its own process when a key is refused, and has only text to tell why.
"""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import httpx
from flwr.app import Error
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

from coterie.clients.flower_record import from_message, to_record
from coterie.clients.flower_tell import tell

LEASE = 15.0
"""Heartbeat interval that the SuperLink is told. After twice this time without one, the node counts as gone."""
BEAT = 5.0
AGAIN, PAUSE = 6, 0.3
"""How often a node that was just active may be refused by mistake, and the seconds before it tries again."""
STALLED = 30.0
"""Seconds without any new part of a message after which it is given up, and asked for again."""
STARTING, AWAY = 503, (502, 503, 504)
"""Status codes of a gateway whose SuperLink is being started, or was stopped."""

Head = dict[str, Any]
"""What has to be known of a message to answer it, as plain values."""


class LostError(Exception):
    """A call failed in a way in which a message may have been lost, or is refused by now."""


class NotAdmittedError(Exception):
    """The server does not let this key in."""

    def __init__(self, status: int, code: int | None) -> None:
        super().__init__(f"status {status}, code {code}")
        self.status = status
        self.code = code
        """Flower's own code, if the answer comes from Flower."""


class TooLargeError(Exception):
    """A message is larger than this courier carries."""


class Fleet:
    """The connection of one node."""

    def __init__(self, server: str, ca: bytes | None, key: Any, limit: int) -> None:
        interceptors = [NodeAuthHttpInterceptor(key, key.public_key())]
        self._client: Any = FleetHttpClient.from_server_address(server, ca is None, ca, interceptors)
        self._key, self._limit = public_key_to_bytes(key.public_key()), limit
        self._node = Node()
        self.expelled = threading.Event()
        """Set when the server has refused a heartbeat."""

    def activate(self, node: int | None) -> int:
        """Tell the server that this node is here and holds no message. Returns its id.

        `node` is its last known id. Without it, a node that is still active is refused until its lease ends.
        """
        left = 0 if node is None else AGAIN
        while True:
            try:
                self._node = Node(node_id=self._activate_once(node))
            except LostError:  # it may have been activated, and is refused the next time
                left = AGAIN + (0 if node is not None else int(2 * LEASE / PAUSE))
            except NotAdmittedError:  # perhaps a heartbeat was on its way, and has activated it first
                if left == 0:
                    raise
                left -= 1
                time.sleep(PAUSE)
            else:
                self.expelled.clear()
                return int(self._node.node_id)

    def _activate_once(self, node: int | None) -> int:
        if node is not None:
            with suppress(httpx.HTTPStatusError):
                self._call("DeactivateNode", DeactivateNodeRequest(node_id=node))
        try:
            request = ActivateNodeRequest(public_key=self._key, heartbeat_interval=LEASE)
            return int(self._call("ActivateNode", request, may_lose=True).node_id)
        except httpx.HTTPStatusError as error:
            raise NotAdmittedError(error.response.status_code, flower_code(error.response)) from None

    def continue_as(self, node: int) -> bool:
        """Return to the network under an id, without activating the node. Returns whether the server accepts it."""
        self._node = Node(node_id=node)
        try:
            return bool(self._call("SendNodeHeartbeat", self._heartbeat()).success)
        except LostError:
            return False

    def _heartbeat(self) -> SendNodeHeartbeatRequest:
        return SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=LEASE)

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Send heartbeats, and give the lease back in the end."""
        stop = threading.Event()

        def beat() -> None:
            while not stop.wait(BEAT):
                try:
                    self._client.SendNodeHeartbeat(self._heartbeat())
                except httpx.HTTPStatusError as error:
                    if error.response.status_code == 401:
                        self.expelled.set()
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

    def next(self) -> tuple[Head, Any] | None:
        """Return the next message that waits for this node, and the tree of its parts."""
        got = self._call("PullMessages", PullMessagesRequest(node=self._node), may_lose=True)
        if not got.messages_list:
            return None
        meta, tree = got.messages_list[0].metadata, got.message_object_trees[0]
        head = {"id": tree.object_id, "run": meta.run_id, "from": meta.src_node_id, "group": meta.group_id}
        times = {"created": meta.created_at, "ttl": meta.ttl, "received": time.time()}
        return {**head, **times, "type": meta.message_type}, tree

    def bundle(self, run: int) -> str:
        """Return the digest of a run's bundle."""
        return str(self._call("GetRun", GetRunRequest(node=self._node, run_id=run)).run.fab_hash)

    def fetch(self, head: Head, tree: Any) -> bytes:
        """Return the content of a message, as soon as the server has sent all of it."""
        parts: dict[str, bytes] = {}
        size = 0
        for name in dict.fromkeys(each.object_id for each in iterate_object_tree(tree)):
            parts[name] = self._part(PullObjectRequest(node=self._node, run_id=head["run"], object_id=name))
            size += len(parts[name])
            if size > self._limit + (1 << 20):
                raise TooLargeError
        content = from_message(inflate_object_from_contents(head["id"], parts))
        if len(content) > self._limit:
            raise TooLargeError
        return content

    def _part(self, request: Any) -> bytes:
        end, pause = time.monotonic() + STALLED, 0.02
        while not (got := self._call("PullObject", request)).object_available:
            if not got.object_found or time.monotonic() > end:
                raise LostError("a part of a message did not come")
            time.sleep(pause)
            pause = min(2 * pause, 0.5)
        return bytes(got.object_content)

    def confirm(self, head: Head) -> None:
        """Tell the server that a message is safe here."""
        request = ConfirmMessageReceivedRequest(node=self._node, run_id=head["run"], message_object_id=head["id"])
        self._call("ConfirmMessageReceived", request)

    def reply(self, head: Head, content: bytes) -> None:
        """Send the reply to a message."""
        if len(content) > self._limit:
            raise TooLargeError
        metadata = self._metadata(head)
        self._send(head, make_message(metadata, to_record(content)), make_message(metadata, to_record(b"")))

    def refuse(self, head: Head, code: int, reason: str) -> None:
        """Answer a message with a refusal."""
        message = make_message(self._metadata(head), error=Error(code=code, reason=reason))
        self._send(head, message, message)

    def _metadata(self, head: Head) -> Metadata:
        """Return the metadata of a reply. It has the times of the question: this machine's clock does not matter."""
        return Metadata(
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

    def _send(self, head: Head, message: Any, bare: Any) -> None:
        message.metadata.__dict__["_message_id"] = message.object_id
        with no_object_id_recompute():
            request = PushMessagesRequest(
                node=self._node,
                messages_list=[message_to_proto(bare)],
                message_object_trees=[get_object_tree(message)],
                clientapp_runtime_list=[0.0],
            )
            answer = self._call("PushMessages", request)
            if not answer.objects_to_push:
                raise LostError("nobody waits for a reply any more")

            def push(name: str, part: bytes) -> None:
                args = {"node": self._node, "run_id": head["run"], "session_id": answer.session_id, "object_id": name}
                if not self._call("PushObject", PushObjectRequest(object_content=part, **args)).stored:
                    raise LostError("nobody waits for a reply any more")

            push_objects(get_all_nested_objects(message), push, object_ids_to_push=set(answer.objects_to_push))

    def _call(self, method: str, request: Any, may_lose: bool = False) -> Any:
        """Call the server, with growing pauses while it cannot be reached."""
        pause = 0.1
        while True:
            try:
                return getattr(self._client, method)(request)
            except httpx.HTTPStatusError as error:
                status = error.response.status_code
                if status not in AWAY:
                    if method in ("ActivateNode", "DeactivateNode"):
                        raise
                    raise LostError(f"the server refused {method} with status {status}") from None
                broke = status != STARTING
            except httpx.TransportError as error:
                broke = not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
            if may_lose and broke:
                time.sleep(pause)
                raise LostError("the connection broke")
            if pause == 0.1:
                tell("waiting", "waiting for the server")
            time.sleep(pause)
            pause = min(1.5 * pause, 3.0)


def flower_code(response: httpx.Response) -> int | None:
    """Return Flower's own error code, if the answer comes from Flower."""
    try:
        return int(json.loads(response.text)["code"])
    except (ValueError, KeyError, TypeError):
        return None
