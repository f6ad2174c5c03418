"""What is refused behind TLS, with a reason on both sides."""

import socket
import ssl
import threading

import pytest

from coterie.clients.flower_server import FlowerTransport
from coterie.clients.flower_tell import EXITS, Exit
from coterie.errors import UserError
from coterie.sites.certs import fingerprint
from realsites import Site, new_tls, sites, until


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
    until(lambda: any("Failed to activate" in sentence for sentence in told), "the server tells")
    assert any(fingerprint(stranger.public) in sentence for sentence in told)


def test_another_ca(server, folder, told):
    other = new_tls(folder / "other", ["127.0.0.1"])
    code, text = refused(Site(folder, "fooled", server.address, other / "ca.crt"))
    assert (code, "is not signed by" in text) == (Exit.WRONG_CA, True)
    until(lambda: any("UNKNOWN_CA" in sentence for sentence in told), "the server tells")


def test_another_name(server, folder, tls):
    code, text = refused(Site(folder, "misled", server.address, tls / "ca.crt", host="localhost"))
    assert (code, "is not for localhost" in text) == (Exit.WRONG_NAME, True)


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


def test_an_expired_certificate(tmp_path):
    expired = new_tls(tmp_path / "expired", ["127.0.0.1"], days=-1)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(expired / "server.crt", expired / "server.key")

    def answer(connection):
        with pytest.raises(ssl.SSLError):
            context.wrap_socket(connection, server_side=True)

    code, text = refused(Site(tmp_path, "site", listen(answer), expired / "ca.crt"))
    assert (code, "is not valid today: certificate has expired" in text) == (Exit.EXPIRED, True)


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
