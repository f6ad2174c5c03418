"""What the server does at its SuperLink: it registers keys, submits the run, sends messages and fetches replies.

Flower's `Grid` is not used, because it waits for
ever for a SuperLink that is restarted, sends signals to its own process, and waits 1 s for an object that is about to
arrive.
"""

import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from flwr.app import RecordDict
from flwr.app.message import make_message
from flwr.app.metadata import Metadata
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.common.serde import message_to_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    RegisterNodeRequest,
    StartRunRequest,
    UnregisterNodeRequest,
)
from flwr.proto.fab_pb2 import Fab
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest, PushObjectRequest
from flwr.proto.node_pb2 import Node as NodeProto
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    GetNodesRequest,
    PullAppMessagesRequest,
    PullTaskInputRequest,
    PushAppMessagesRequest,
    PushTaskOutputRequest,
    SendTaskHeartbeatRequest,
)
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, push_objects
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.runtime import RuntimeHttpClient

from coterie.clients.flower_record import from_message, to_record
from coterie.clients.flower_stub import bundle, digest

SERVERAPP = "flwr-serverapp"
"""Flower's name for the kind of task that this process takes."""
UNREACHABLE = (httpx.TransportError, httpx.HTTPStatusError)
"""What is raised while the SuperLink is restarted, or if it fails in a call."""
ENDED = (401, 403)
"""Status codes that say that the run has ended at the SuperLink."""


class RunEndedError(Exception):
    """The Flower run is over, because its lease has ended. A new one has to be submitted."""


class Node(NamedTuple):
    """A courier that is connected."""

    id: int
    key: bytes
    activated: str
    """When it connected last. A new value means that it holds none of the messages that were sent before."""


class Token(NamedTuple):
    """The right to act for a run."""

    run: int
    token: str


class Arriving:
    """A reply whose objects are being fetched."""

    def __init__(self, message: Any, tree: Any) -> None:
        self.id = str(message.metadata.message_id)
        self.question = str(message.metadata.reply_to_message_id)
        self.error: tuple[int, str] | None = None
        self.missing: list[str] = []
        self._contents: dict[str, bytes] = {}
        self.size = 0
        if message.HasField("error"):
            self.error = (int(message.error.code), str(message.error.reason))
        else:
            self.missing = list(dict.fromkeys(each.object_id for each in iterate_object_tree(tree)))

    def add(self, name: str, content: bytes) -> None:
        """Take the bytes of an object."""
        self.missing.remove(name)
        self._contents[name] = content
        self.size += len(content)

    def payload(self) -> bytes:
        """Return what the site sent. Raises ValueError if it is not a reply of a courier."""
        try:
            return from_message(inflate_object_from_contents(self.id, self._contents))
        except KeyError as error:
            raise ValueError(f"not a message of Flower: {error!r}") from None


class Link:
    """The SuperLink of this server, at a port of this machine."""

    def __init__(self, port: int, certificate: Path, secret: bytes) -> None:
        self._address, self._certificate = f"127.0.0.1:{port}", certificate.read_bytes()
        self._control = self._client(ControlHttpClient, "flwr CLI")
        acquire = SuperExecAuthHttpInterceptor(
            master_secret=secret, protected_methods={"/flwr.proto.Runtime/AcquireTask"}
        )
        self._executor = self._client(RuntimeHttpClient, "SuperExec", acquire)
        self._runtime: Any = None
        self._run = 0

    def _client(self, kind: Any, component: str, *interceptors: Any) -> Any:
        interceptors = (RuntimeVersionHttpInterceptor(component_name=component), *interceptors)
        client = kind.from_server_address(self._address, False, self._certificate, interceptors)
        client._client._mounts.clear()  # a proxy is never meant for this machine itself
        return client

    def close(self) -> None:
        """Close all connections."""
        for client in (self._control, self._executor, self._runtime):
            if client is not None:
                client.close()

    def answers(self) -> bool:
        """Return whether the SuperLink is ready."""
        try:
            self._control.ListNodes(ListNodesRequest())
        except UNREACHABLE:
            return False
        return True

    def registered(self) -> dict[bytes, tuple[int, bool]]:
        """Return the id of each key that was ever registered, and whether it still is."""
        nodes = self._control.ListNodes(ListNodesRequest()).nodes_info
        return {bytes(node.public_key): (int(node.node_id), node.status != "unregistered") for node in nodes}

    def register(self, key: bytes) -> None:
        """Let a key connect."""
        self._control.RegisterNode(RegisterNodeRequest(public_key=key))

    def unregister(self, node: int) -> None:
        """Refuse a key from now on."""
        self._control.UnregisterNode(UnregisterNodeRequest(node_id=node))

    def submit(self) -> Token:
        """Submit a new run and take it. Runs that somebody else has submitted are refused."""
        run = int(self._control.StartRun(StartRunRequest(fab=Fab(hash_str=digest(), content=bundle()))).run_id)
        while True:
            taken = self._executor.AcquireTask(AcquireTaskRequest(supported_task_types=[SERVERAPP]))
            if not taken.token:
                raise RunEndedError("the SuperLink gave this run to another process")
            self.go_on(Token(int(taken.task.run_id), str(taken.token)))
            task = self._runtime.PullTaskInput(PullTaskInputRequest())
            if int(taken.task.run_id) == run and task.fab.hash_str == digest():
                return Token(run, str(taken.token))
            self._runtime.PushTaskOutput(PushTaskOutputRequest(sub_status="failed", details="not a run of Coterie"))

    def go_on(self, token: Token) -> None:
        """Act for this run from now on."""
        if self._runtime is not None:
            self._runtime.close()
        self._runtime = self._client(RuntimeHttpClient, SERVERAPP, RuntimeTokenHttpInterceptor(token.token))
        self._run = token.run

    def heartbeat(self) -> None:
        """Keep the run alive. Raises `RunEndedError` if it has ended."""
        if not self._ask("SendTaskHeartbeat", SendTaskHeartbeatRequest()).success:
            raise RunEndedError("the run has ended at the SuperLink")

    def finish(self) -> None:
        """End the run in Flower's records."""
        self._ask("PushTaskOutput", PushTaskOutputRequest(sub_status="completed", details=""))

    def nodes(self) -> list[Node]:
        """Return the couriers that are connected."""
        nodes = self._ask("GetNodes", GetNodesRequest()).nodes
        return [Node(int(node.node_id), bytes(node.public_key), str(node.last_activated_at)) for node in nodes]

    def send(self, requests: Mapping[int, bytes], seconds: float, group: str) -> dict[str, int]:
        """Send bytes to nodes, and return the node of each message. Messages that are not taken are missing.

        Messages with the same bytes share all objects, so that these are stored once.
        """
        records: dict[bytes, RecordDict] = {}
        messages, sent_to = [], {}
        for node, content in requests.items():
            if content not in records:
                records[content] = to_record(content)
            message = make_message(self._metadata(node, seconds, group), records[content])
            message.metadata.__dict__["_message_id"] = message.object_id
            messages.append(message)
            sent_to[message.object_id] = node
        with no_object_id_recompute():
            bare = [make_message(message.metadata, RecordDict()) for message in messages]
            request = PushAppMessagesRequest(
                messages_list=[message_to_proto(message) for message in bare],
                message_object_trees=[get_object_tree(message) for message in messages],
            )
            answer = self._ask("PushMessages", request)
            objects: dict[str, Any] = {}
            for message in messages:
                objects |= get_all_nested_objects(message)

            def push(name: str, content: bytes) -> None:
                node = NodeProto(node_id=SUPERLINK_NODE_ID)
                args = {"node": node, "run_id": self._run, "object_id": name, "session_id": answer.session_id}
                if not self._ask("PushObject", PushObjectRequest(object_content=content, **args)).stored:
                    raise httpx.WriteError("the SuperLink took too long")

            push_objects(objects, push, object_ids_to_push=set(answer.objects_to_push))
        return {name: sent_to[name] for name in answer.message_ids if name}

    def _metadata(self, node: int, seconds: float, group: str) -> Metadata:
        return Metadata(
            run_id=self._run,
            message_id="",
            src_node_id=SUPERLINK_NODE_ID,
            dst_node_id=node,
            reply_to_message_id="",
            group_id=group,
            created_at=time.time(),
            ttl=seconds,
            message_type="train",
        )

    def replies(self, questions: Iterable[str]) -> list[Arriving]:
        """Return the replies that have come to these messages. Each one is returned once."""
        answer = self._ask("PullMessages", PullAppMessagesRequest(message_ids=questions))
        pairs = zip(answer.messages_list, answer.message_object_trees, strict=True)
        return [Arriving(message, tree) for message, tree in pairs]

    def fetch(self, reply: Arriving, limit: int) -> bool:
        """Fetch those objects of a reply that have come. Returns whether all have. Stops at `limit` bytes.

        Raises KeyError if an object is lost, because the courier was too slow to send it.
        """
        node = NodeProto(node_id=SUPERLINK_NODE_ID)
        for name in list(reply.missing):
            answer = self._ask("PullObject", PullObjectRequest(node=node, run_id=self._run, object_id=name))
            if not answer.object_found:
                raise KeyError(name)
            if not answer.object_available:
                return False
            reply.add(name, answer.object_content)
            if reply.size > limit:
                break
        self._delete(reply.id)
        return True

    def forget(self, questions: Collection[str], replies: Iterable[str]) -> None:
        """Delete the objects of messages and replies that are no longer of interest."""
        late = [reply.id for reply in self.replies(questions)] if questions else []
        for message in (*questions, *replies, *late):
            self._delete(message)

    def _delete(self, message: str) -> None:
        node = NodeProto(node_id=SUPERLINK_NODE_ID)
        request = ConfirmMessageReceivedRequest(node=node, run_id=self._run, message_object_id=message)
        self._ask("ConfirmMessageReceived", request)

    def _ask(self, method: str, request: Any) -> Any:
        try:
            return getattr(self._runtime, method)(request)
        except httpx.HTTPStatusError as error:
            if error.response.status_code in ENDED:
                raise RunEndedError(f"the SuperLink refused {method}: {error.response.text[:200]}") from None
            raise
