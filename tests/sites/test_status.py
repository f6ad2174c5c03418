"""What `coterie status` says."""

import contextlib
import re
import socket
import threading
from pathlib import Path

import pytest

import reference as ref
from coterie.clients.transport import Failure
from coterie.clients.wire import decode
from coterie.errors import StoppedError, UserError
from coterie.sites import status
from sites.direct import Direct, deployed
from sites.test_equality import recipe


def test_of_a_run(tmp_path: Path) -> None:
    def late(name, request, answer):
        asked = decode(request)
        if name == "client-1" and asked.kind == "update" and asked.head["round"]["index"] == 2:
            return Failure("late", "no reply within 5 s")
        return answer(request)

    transport = Direct(ref.federation((5, 3, 8)), tmp_path / "sites", late)
    run = deployed(recipe("pflego", clients_per_round=3), transport, tmp_path / "run", quorum=0.5, attempts=1)
    first, last, score, *sites = status.of_run(tmp_path / "run")
    assert first == f"{tmp_path / 'run'} has ended: 4 of 4 rounds of pflego"
    assert re.fullmatch(r"last round: \S+, loss \d\.\d{4}", last)
    assert score.endswith(f"after round 4: {run.summary.existing.as_is.mean:.4f}")
    assert sites == [
        "client-0: 4 replies",
        "client-1: 3 replies; last reply that was not used: no reply within 5 s",
        "client-2: 4 replies",
    ]


def test_of_a_folder_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not the folder of a run"):
        status.of_run(tmp_path)


def test_of_an_address(monkeypatch) -> None:
    monkeypatch.setattr(status, "TIMEOUT", 2.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"

        def answer() -> None:
            for _ in range(2):  # the first connection asks for TLS
                connection, _ = server.accept()
                with connection:
                    connection.recv(1000)
                    connection.sendall(b"HTTP/1.0 403 Forbidden\r\n\r\na server of Coterie, for its sites only")

        thread = threading.Thread(target=answer)
        thread.start()
        assert status.of_address(address) == [f"{address} answers, without TLS: the gateway of a Coterie server"]
        thread.join()
    with pytest.raises(StoppedError, match=f"nobody answers at {address}"):
        status.of_address(address)


@pytest.mark.parametrize(
    "address", ["somewhere", "127.0.0.1:\u00b2", "127.0.0.1:65536", "127.0.0.1:0", "h:" + "9" * 5000]
)
def test_of_what_is_no_address(address) -> None:
    with pytest.raises(UserError, match="an address is HOST:PORT"):
        status.of_address(address)


@pytest.mark.parametrize("host", ["a..b", "x" * 70])
def test_of_a_host_that_cannot_exist(host) -> None:
    with pytest.raises(StoppedError, match="nobody answers at"):
        status.of_address(f"{host}:80")


def test_of_a_server_that_never_ends(monkeypatch) -> None:
    """It sends an endless answer, which is read in part."""
    monkeypatch.setattr(status, "TIMEOUT", 2.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"

        def answer() -> None:
            server.accept()[0].close()  # the first connection asks for TLS
            connection, _ = server.accept()
            with connection, contextlib.suppress(OSError):
                while True:
                    connection.sendall(b"x" * 1000)

        threading.Thread(target=answer, daemon=True).start()
        (told,) = status.of_address(address)
    assert "not a Coterie server" in told
