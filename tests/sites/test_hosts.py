"""Several hosts on one machine: what is open between them is noticed, and what is missing is said."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from commands import coterie, in_folder
from coterie.errors import StoppedError, UserError
from coterie.sites import hosts
from coterie.sites.hosts import ADDRESS, SERVER, Hosts

LISTEN = """
import socket, sys
with socket.create_server((sys.argv[1], int(sys.argv[2]))):
    print("listening", flush=True)
    sys.stdin.read()
"""


def can_make_networks() -> bool:
    if sys.platform != "linux" or shutil.which("ip") is None or os.geteuid() != 0:
        return False
    try:
        with Hosts(["a"]):
            return True
    except UserError:  # for example in a container without the capability
        return False


networks = pytest.mark.skipif(not can_make_networks(), reason="needs root, Linux and iproute2")


@contextmanager
def listening(made: Hosts, host: str, address: str, port: int) -> Iterator[None]:
    """Let a program on a host wait for connections."""
    command = [*made.on(host), sys.executable, "-c", LISTEN, address, str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"listening\n"
        yield
        process.terminate()


@networks
def test_only_one_port_of_the_server_may_be_open_and_none_at_a_site():
    with Hosts(["north", "south"]) as made:
        with pytest.raises(StoppedError, match="from the site north, these ports answer: none"):
            made.check(8443)
        with listening(made, SERVER, ADDRESS, 8443), listening(made, SERVER, "127.0.0.1", 9000):
            assert made.check(8443) == [
                f"from each site, {ADDRESS}:8443 answers; the other ports of the server (9000) do not",
                "no site has an open port",
            ]
            with (
                listening(made, SERVER, "0.0.0.0", 9001),
                pytest.raises(StoppedError, match=f"from the site north, these ports answer: .*{ADDRESS}:9001"),
            ):
                made.check(8443)
            with (
                listening(made, "south", "127.0.0.1", 7000),
                pytest.raises(StoppedError, match="the site south listens on 7000"),
            ):
                made.check(8443)


@networks
def test_a_site_reaches_the_server_and_no_other_site():
    with Hosts(["north", "south"]) as made, listening(made, "south", "10.77.1.2", 7000):
        tried = [*made.on("north"), sys.executable, "-c", hosts._TRY, "10.77.1.2:7000"]
        assert subprocess.run(tried, capture_output=True, check=True).stdout == b""
        tried[:4] = made.on("south")
        assert subprocess.run(tried, capture_output=True, check=True).stdout == b"10.77.1.2:7000\n"
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert f"coterie-{os.getpid()}-" not in left


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ("platform", "--hosts needs the network namespaces of Linux; omit it on this system"),
        ("ip", "--hosts needs the program ip; install iproute2, for example with: apt install iproute2"),
        ("root", "--hosts needs root, because it makes network namespaces; use sudo, or omit it"),
    ],
)
def test_what_is_missing_is_said(what, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(hosts, "sys", SimpleNamespace(platform="darwin" if what == "platform" else "linux"))
    monkeypatch.setattr(hosts.shutil, "which", lambda _: None if what == "ip" else "/sbin/ip")
    monkeypatch.setattr(hosts.os, "geteuid", lambda: 1000 if what == "root" else 0)
    with in_folder(tmp_path, monkeypatch):
        assert coterie(monkeypatch, "local", "digits", "--sites", "5", "--hosts", "--out", "all") == 2
    assert f"error: {sentence}" in capsys.readouterr().err
    assert not (tmp_path / "all").exists()


@networks
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_between_hosts(tmp_path, monkeypatch, capsys):
    with in_folder(tmp_path, monkeypatch):
        run = ("local", "digits", "--sites", "5", "--set", "run.rounds=2", "--out", "all", "--hosts")
        assert coterie(monkeypatch, *run) == 0
    shown = " ".join(capsys.readouterr().err.split())
    assert f"from each site, {ADDRESS}:" in shown
    assert "no site has an open port" in shown
    assert (tmp_path / "all" / "run" / "summary.json").exists()
