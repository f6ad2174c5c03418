"""The socket of a site process."""

import os
import signal
import socket
import subprocess
import sys
import threading

import pytest

from coterie.errors import UserError
from coterie.sites.socket import LENGTH, exchange, receive, send, serve
from realsites import HERE, until


@pytest.fixture
def site(tmp_path):
    started = []

    def start(seconds=0.0):
        arguments = [str(tmp_path / "s" / "s"), "site", str(seconds), str(tmp_path / "asked")]
        process = subprocess.Popen([sys.executable, "-I", str(HERE / "echo_site.py"), *arguments])
        started.append(process)
        until(lambda: answers(tmp_path / "s" / "s"), "it listens")
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def answers(path):
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def never():
    return False


def test_a_request_and_its_reply(site, tmp_path):
    site()
    path = tmp_path / "s" / "s"
    large = os.urandom(5 << 20)
    assert exchange(path, large, never) == b"site:" + large
    assert exchange(path, b"", never) == b"site:"
    assert path.parent.stat().st_mode & 0o7777 == 0o700
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_length_comes_first_with_its_lowest_byte():
    assert LENGTH.pack(258) == b"\x02\x01\0\0\0\0\0\0"


def test_a_broken_request_does_not_stop_the_site(site, tmp_path):
    site()
    path = tmp_path / "s" / "s"
    for part in (b"", b"\x01", LENGTH.pack(10) + b"short", LENGTH.pack(1 << 60)):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(path))
            connection.sendall(part)
    assert exchange(path, b"x", never) == b"site:x"
    assert (tmp_path / "asked").read_text() == "asked\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_in_the_middle_of_an_answer(site, tmp_path, number):
    process = site(seconds=600)
    path = tmp_path / "s" / "s"
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        send(connection, b"x")
        until((tmp_path / "asked").exists, "it works")
        process.send_signal(number)
        assert process.wait(timeout=20) == 0
        assert not path.exists()


def test_a_socket_of_a_killed_process_is_replaced(site, tmp_path):
    process = site()
    process.kill()
    process.wait()
    assert (tmp_path / "s" / "s").exists()
    site()
    assert exchange(tmp_path / "s" / "s", b"x", never) == b"site:x"


def test_a_second_site_process_is_refused(site, tmp_path):
    site()
    with pytest.raises(UserError, match="another process answers"):
        serve(tmp_path / "s" / "s", bytes)


def test_a_path_that_is_too_long_is_named(tmp_path):
    with pytest.raises(UserError, match="shorter path"):
        serve(tmp_path / ("x" * 120) / "s", bytes)


def test_a_site_that_takes_too_long_is_given_up(site, tmp_path):
    site(seconds=600)
    with pytest.raises(TimeoutError):
        exchange(tmp_path / "s" / "s", b"x", lambda: True)


def test_a_message_that_is_too_long_is_refused():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        thread = threading.Thread(target=send, args=(ours, b"12345"))
        thread.start()
        with pytest.raises(ValueError, match="a message of 5 bytes, more than 4"):
            receive(theirs, 4)
        thread.join()
