"""What is used of Flower's insides. If a test fails after an upgrade, look at `clients/flower_*.py` again."""

import inspect
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import httpx
from flwr.app import RecordDict
from flwr.app.message import make_message
from flwr.app.metadata import Metadata
from flwr.common.constant import (
    FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE,
    HEARTBEAT_MIN_INTERVAL,
    SUPERLINK_NODE_ID,
    TIMESTAMP_HEADER,
    ErrorCode,
)
from flwr.common.serde import message_to_proto
from flwr.proto import control_pb2, fleet_pb2, message_pb2, node_pb2, runtime_pb2
from flwr.proto.message_pb2 import ObjectTree, PullObjectResponse
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode import fleet_http_client
from flwr.supernode.fleet_http_client import FleetHttpClient

from coterie.clients import flower_command, flower_courier, flower_fleet, flower_gateway, flower_link
from coterie.clients.flower_asking import OWN
from coterie.clients.flower_link import Arriving, Link
from coterie.clients.flower_record import from_message, to_record
from coterie.clients.flower_stub import bundle, digest
from coterie.clients.flower_version import FLOWER

CLIENTS = Path(flower_command.__file__).parent


def test_the_version_is_the_one_that_was_read():
    assert version("flwr") == FLOWER


def test_the_calls_exist():
    fleet = set(re.findall(r'_call\("(\w+)"', inspect.getsource(flower_fleet))) | {"SendNodeHeartbeat"}
    runtime = set(re.findall(r'_ask\("(\w+)"', inspect.getsource(flower_link)))
    runtime |= set(re.findall(r"(?:_executor|_runtime)\.([A-Z]\w+)\(", inspect.getsource(flower_link)))
    control = set(re.findall(r"_control\.(\w+)\(", inspect.getsource(flower_link))) - {"close"}
    for kind, calls, least in (
        (FleetHttpClient, fleet, 9),
        (RuntimeHttpClient, runtime, 9),
        (ControlHttpClient, control, 4),
    ):
        assert len(calls) >= least
        for call in calls:
            assert list(inspect.signature(getattr(kind, call)).parameters)[:2] == ["self", "request"]


def test_the_gateway_passes_the_calls_of_a_courier_and_no_other():
    paths = dict(re.findall(r'path="/v1/fleet/([a-z-]+)",\s+rpc_method="/flwr.proto.Fleet/(\w+)"', _source()))
    used = set(re.findall(r'_call\("(\w+)"', inspect.getsource(flower_fleet))) | {"SendNodeHeartbeat"}
    assert {f"/v1/fleet/{path}" for path, call in paths.items() if call in used} == flower_gateway.ALLOWED
    signed = {FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER, TIMESTAMP_HEADER}
    assert signed < set(flower_gateway.KEPT)


def _source():
    return inspect.getsource(fleet_http_client)


def test_a_part_of_a_message_fits_through_the_gateway():
    assert FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE + (1 << 20) < flower_gateway.LIMIT


def test_the_fields_of_messages():
    fields = {
        node_pb2.NodeInfo: "node_id public_key last_activated_at status",
        fleet_pb2.PullMessagesResponse: "messages_list message_object_trees",
        fleet_pb2.PushMessagesResponse: "objects_to_push session_id",
        runtime_pb2.PushAppMessagesResponse: "message_ids objects_to_push session_id",
        runtime_pb2.PullAppMessagesResponse: "messages_list message_object_trees",
        runtime_pb2.PullTaskInputResponse: "run fab",
        runtime_pb2.AcquireTaskResponse: "task token",
        runtime_pb2.SendTaskHeartbeatResponse: "success",
        message_pb2.PullObjectResponse: "object_found object_available object_content",
        message_pb2.PushObjectResponse: "stored",
        message_pb2.Metadata: "run_id message_id src_node_id dst_node_id reply_to_message_id group_id created_at ttl",
        control_pb2.StartRunResponse: "run_id",
    }
    for message, names in fields.items():
        assert set(names.split()) <= set(message.DESCRIPTOR.fields_by_name), message


def test_our_error_codes_are_free():
    assert OWN.keys() == {flower_courier.REFUSED, flower_courier.TOO_LARGE}
    assert not OWN.keys() & {code for name, code in vars(ErrorCode).items() if name.isupper()}


def test_the_metadata_takes_what_we_give_it():
    names = list(inspect.signature(Metadata).parameters)
    assert names == [
        *("run_id", "message_id", "src_node_id", "dst_node_id", "reply_to_message_id", "group_id", "created_at", "ttl"),
        *("message_type", "src_task_id", "dst_task_id"),
    ]
    assert SUPERLINK_NODE_ID == 1
    assert flower_fleet.LEASE >= HEARTBEAT_MIN_INTERVAL


def test_a_client_takes_no_proxy_on_its_own_machine():
    client = RuntimeHttpClient("https://127.0.0.1:1")
    assert isinstance(client._client, httpx.Client)
    assert isinstance(client._client._mounts, dict)
    client.close()


def test_bytes_survive_a_message():
    class Message:
        content = to_record(b"any bytes")

    assert from_message(Message) == b"any bytes"


def test_the_bundle_never_changes():
    assert len(bundle()) == 374
    assert digest() == "2be295aacb9db7835d9174a46dadfd4c2fa7aaa14580f18672d4e7cea784b0a9"


def imported(module):
    """Return the modules that a process of ours imports, from Python's own list of import times."""
    command = [sys.executable, "-I", "-X", "importtime", str(flower_command.CHILD)]
    code = f"import os, sys; os.execv(sys.executable, {command!r} + [str(os.getppid()), {module!r}, '--help'])"
    process = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    return {line.rpartition("|")[2].strip() for line in process.stderr.splitlines() if "|" in line}


def test_a_courier_loads_little():
    modules = imported(flower_command.COURIER)
    assert "flwr.supernode.fleet_http_client" in modules
    assert not {name for name in modules if name.split(".")[0] in ("torch", "ray", "scipy", "sklearn")}
    ours = {name for name in modules if name.split(".")[0] == "coterie"}
    few = {f"coterie.clients.{file.stem}" for file in CLIENTS.glob("flower_*.py")}
    assert "coterie.clients.flower_fleet" in ours
    assert ours <= few | {"coterie.clients", "coterie.sites", "coterie.sites.socket", "coterie.errors"}


def test_the_gateway_loads_no_flower():
    modules = imported("coterie.clients.flower_gateway")
    assert "uvicorn" in modules
    assert not {name for name in modules if name.split(".")[0] in ("flwr", "torch")}


def test_a_reply_is_not_fetched_beyond_the_limit():
    """A site that sends very much does not fill the memory of the server."""
    link, asked = Link.__new__(Link), []

    class Runtime:
        def PullObject(self, request):
            asked.append(request.object_id)
            return PullObjectResponse(object_found=True, object_available=True, object_content=bytes(1000))

        def ConfirmMessageReceived(self, request):
            asked.append("deleted")

    link._runtime, link._run = Runtime(), 1
    metadata = Metadata(1, "reply", 2, 1, "question", "", 0.0, 60.0, "train")
    reply = Arriving(message_to_proto(make_message(metadata, RecordDict())), ObjectTree())
    reply.missing = [f"part {number}" for number in range(1000)]
    assert link.fetch(reply, 2500)
    assert asked == ["part 0", "part 1", "part 2", "deleted"]
    assert reply.size == 3000


def test_a_courier_loads_neither_pytorch_nor_a_web_framework():
    child = CLIENTS / "flower_child.py"
    code = (
        f"import runpy; runpy.run_path({str(child)!r})['make_empty_packages']({flower_command.COURIER!r})\n"
        f"import {flower_command.COURIER}, sys; print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True).stdout
    assert flower_command.COURIER in loaded.split()
    assert not {"torch", "fastapi", "requests", "coterie.core"} & set(loaded.split())
