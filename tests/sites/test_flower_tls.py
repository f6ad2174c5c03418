"""What is refused behind TLS, with a reason on both sides."""

import base64
import datetime
import json
import socket
import ssl
import subprocess
import threading
from contextlib import suppress

import httpx
import pytest
from cryptography.hazmat.primitives import serialization
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message

from coterie.clients.flower_command import child_command
from coterie.clients.flower_server import GATEWAY, FlowerTransport
from coterie.clients.flower_tell import EXITS, Exit
from coterie.errors import UserError
from coterie.sites.certs import fingerprint
from realsites import Site, new_tls, sites, until
from sites.proxy import proxied


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
def told():
    return []


@pytest.fixture(scope="module")
def tls(folder):
    return new_tls(folder / "tls", ["127.0.0.1", "coterie.example"])


@pytest.fixture(scope="module")
def server(folder, told, tls):
    server = FlowerTransport(folder / "server", "127.0.0.1:0", tls, lambda: ROSTER, told=told.append)
    yield server
    server.close()


ROSTER: dict[str, str] = {}


def refused(site, *more):
    """Start a courier, and return its exit code and its last sentence."""
    with sites(site):
        site.start_courier(*more)
        return site.exit_code(), site.events()[-1]["text"]


def test_a_registered_site_answers(server, folder, tls):
    site = Site(folder, "north", server.address, tls / "ca.crt")
    ROSTER[site.public] = "north"
    with sites(site):
        site.start()
        assert dict(server.ask({"north": b"hello"}, 60)) == {"north": b"north:hello"}


def test_an_unknown_key(server, folder, tls, told):
    stranger = Site(folder, "stranger", server.address, tls / "ca.crt")
    code, text = refused(stranger)
    assert (code, text.split(",")[0]) == (Exit.UNKNOWN, "the server does not know this key")
    until(lambda: any("its key is not on the list of sites" in sentence for sentence in told), "the server tells")
    assert any(fingerprint(stranger.public) in sentence for sentence in told)


def test_another_ca(server, folder, told):
    other = new_tls(folder / "other", ["127.0.0.1"])
    code, text = refused(Site(folder, "fooled", server.address, other / "ca.crt"))
    assert (code, "is not signed by" in text) == (Exit.WRONG_CA, True)
    until(lambda: any("UNKNOWN_CA" in sentence for sentence in told), "the server tells")


def test_another_name(server, folder, tls, told):
    told.clear()
    code, text = refused(Site(folder, "misled", server.address, tls / "ca.crt", host="localhost"))
    assert (code, "is not for localhost" in text) == (Exit.WRONG_NAME, True)
    until(lambda: any("no TLS connection" in sentence for sentence in told), "the server tells")


def test_a_removed_key(server, folder, tls, told):
    site = Site(folder, "gone", server.address, tls / "ca.crt")
    ROSTER[site.public] = "gone"
    with sites(site):
        site.start()
        until(lambda: "gone" in server.connected(), "it is connected")
        told.clear()
        del ROSTER[site.public]
        until(lambda: "gone" not in server.connected(), "it is removed")
        assert site.exit_code() == Exit.REMOVED
        assert "no longer accepts this key" in site.events()[-1]["text"]
    until(lambda: any("refused 127.0.0.1" in sentence and "(key " in sentence for sentence in told), "the server tells")


def call(server, tls, path="/v1/fleet/pull-messages", content=b"", **headers):
    """Call the server as a courier does, and return the status code."""
    context = ssl.create_default_context(cafile=tls / "ca.crt")
    headers = {
        "content-type": "application/protobuf",
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    return httpx.post(f"https://{server.address}{path}", content=content, headers=headers, verify=context).status_code


def test_no_key(server, tls, told):
    told.clear()
    assert call(server, tls) == 401
    until(lambda: any("(key missing)" in sentence for sentence in told), "the server tells")


def node_of(server, name):
    return next(node.id for who, node in server._nodes().items() if who == name)


def connected(server, folder, tls, name):
    """Return a site that is about to start, and that the server knows."""
    site = Site(folder, name, server.address, tls / "ca.crt")
    ROSTER[site.public] = name
    return site


def signed(site, moment=None):
    """Return the headers with which a site signs a call, at some moment."""
    key = serialization.load_ssh_private_key((site.folder / "key").read_bytes(), None)
    moment = (moment or datetime.datetime.now(datetime.UTC)).isoformat()
    public, signature = public_key_to_bytes(key.public_key()), sign_message(key, moment.encode())
    encoded = {name: base64.b64encode(value).decode() for name, value in (("public", public), ("sign", signature))}
    return {"flwr_public_key": encoded["public"], "flwr_signature": encoded["sign"], "flwr_timestamp": moment}


def test_the_identity_of_another_site(server, folder, tls, told):
    """A site has a key of its own, and names the node of another one."""
    east, west = (connected(server, folder, tls, name) for name in ("east", "west"))
    with sites(east, west):
        east.start()
        until(lambda: "east" in server.connected(), "it is connected")
        theirs = PullMessagesRequest(node=Node(node_id=node_of(server, "east"))).SerializeToString()
        told.clear()
        assert call(server, tls, content=theirs, **signed(east)) == 200
        assert call(server, tls, content=theirs, **signed(west)) == 401
        until(lambda: any("refused 127.0.0.1" in sentence for sentence in told), "the server tells")
        stolen = {**signed(west), "flwr_public_key": signed(east)["flwr_public_key"]}
        assert call(server, tls, content=theirs, **stolen) == 401


@pytest.mark.parametrize("minutes", [-10, 10])
def test_an_old_signature(server, folder, tls, told, minutes):
    """Flower accepts a signature for five minutes. Within them, TLS is what keeps others from seeing one."""
    site = connected(server, folder, tls, f"clock{minutes}")
    told.clear()
    moment = datetime.datetime.now(datetime.UTC) + datetime.timedelta(minutes=minutes)
    request = ActivateNodeRequest(public_key=b"", heartbeat_interval=15).SerializeToString()
    assert call(server, tls, "/v1/fleet/activate-node", request, **signed(site, moment)) == 401
    until(lambda: any("refused 127.0.0.1" in sentence for sentence in told), "the server tells")


def test_a_replay(server, folder, tls, told):
    """What was recorded of a connection means nothing in another one."""
    with proxied(server.address) as proxy:
        site = Site(folder, "recorded", proxy.address, tls / "ca.crt")
        ROSTER[site.public] = "recorded"
        with sites(site):
            site.start()
            assert dict(server.ask({"recorded": b"hello"}, 60)) == {"recorded": b"recorded:hello"}
    told.clear()
    host, _, port = server.address.rpartition(":")
    longest = max(map(bytes, proxy.up), key=len)
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(longest)
        answer = b""
        with suppress(ConnectionResetError):
            while part := connection.recv(1 << 16):
                answer += part
    assert b"HTTP/" not in answer
    assert site.asked() == 1
    until(lambda: any("no TLS connection" in sentence for sentence in told), "the server tells")


@pytest.mark.parametrize(
    "path", ["/v1/control/start-run", "/v1/runtime/acquire-task", "/v1/fleet/register-node", "/docs"]
)
def test_every_other_api(server, tls, told, path):
    assert call(server, tls, path) == 403
    until(lambda: any(path in sentence for sentence in told), "the server tells")


def test_without_tls(server, folder, told):
    code, text = refused(Site(folder, "plain", server.address))
    assert (code, text.split(":")[0]) == (Exit.NEEDS_TLS, "the server uses TLS")
    until(lambda: any("HTTP_REQUEST" in sentence for sentence in told), "the server tells")


@pytest.mark.parametrize("content", [b"no key at all", b"-----BEGIN OPENSSH PRIVATE KEY-----\nx\n"])
def test_a_file_that_is_no_key(server, folder, tls, tmp_path, content):
    site = Site(tmp_path, "broken", server.address, tls / "ca.crt")
    (site.folder / "key").write_bytes(content)
    code, text = refused(site)
    assert (code, "cannot read the key" in text) == (Exit.BAD_FILE, True)


def listen(answer):
    """Answer one connection at a port of this machine, and return its address."""
    server = socket.create_server(("127.0.0.1", 0))

    def run():
        with server:
            connection, _ = server.accept()
            with connection:
                answer(connection)

    threading.Thread(target=run, daemon=True).start()
    return f"127.0.0.1:{server.getsockname()[1]}"


def test_an_expired_certificate(tmp_path, tls):
    """The gateway alone refuses, so there is nothing behind it."""
    expired = new_tls(tmp_path / "expired", ["127.0.0.1"], days=-1)
    with socket.create_server(("127.0.0.1", 0)) as outside:
        files = ["--certificate", str(expired / "server.crt"), "--key", str(expired / "server.key")]
        nowhere = ["--upstream", "https://127.0.0.1:1", "--upstream-ca", str(tls / "ca.crt")]
        command = child_command(GATEWAY, "--fd", str(outside.fileno()), *nowhere, *files)
        with subprocess.Popen(command, stdout=subprocess.PIPE, pass_fds=[outside.fileno()]) as gateway:
            assert json.loads(gateway.stdout.readline())["event"] == "listening"
            address = f"127.0.0.1:{outside.getsockname()[1]}"
            code, text = refused(Site(tmp_path, "site", address, expired / "ca.crt"))
            told = json.loads(gateway.stdout.readline())["text"]
            gateway.terminate()
    assert (code, "is not valid today: certificate has expired" in text) == (Exit.EXPIRED, True)
    assert told.startswith("refused 127.0.0.1: no TLS connection: ")
    assert "EXPIRED" in told


def test_tls_to_a_server_without(tmp_path, tls):
    address = listen(lambda connection: connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"))
    code, text = refused(Site(tmp_path, "site", address, tls / "ca.crt"))
    assert (code, text.split("(")[0]) == (Exit.NO_TLS, "the server does not use TLS ")


def test_a_tls_folder_is_checked(tmp_path):
    folder = new_tls(tmp_path / "one", ["127.0.0.1"])
    (folder / "server.key").write_bytes((new_tls(tmp_path / "two", ["127.0.0.1"]) / "server.key").read_bytes())
    with pytest.raises(UserError, match="cannot be used together"):
        FlowerTransport(tmp_path / "server", "127.0.0.1:0", folder, dict)
    (folder / "server.key").unlink()
    with pytest.raises(UserError, match=r"has no server.key: make the folder with `coterie certs new"):
        FlowerTransport(tmp_path / "server", "127.0.0.1:0", folder, dict)


def test_every_exit_code_has_a_sentence():
    assert EXITS.keys() == set(Exit)
