"""Two users at a site: one has the data and no network, the other one the network and no data."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from coterie.clients.flower_server import FlowerTransport
from coterie.clients.wire import decode, encode
from coterie.data.own.export import write_client
from coterie.sites import certs, policy
from realsites import until
from sites.deployment import recipe

SITE, COURIER, STRANGER, GROUP, GROUP_ID = 20001, 20002, 20003, "users", 100
PREPARE = (  # a home folder of root in which other users may run Python, if that is where it is; only in this namespace
    'if [ -d /root/.pyenv ]; then t=$(mktemp -d) && mount --bind /root/.pyenv "$t" && mount -t tmpfs -o mode=755 tmpfs '
    '/root && mkdir /root/.pyenv && mount --move "$t" /root/.pyenv; fi; '
)


def command(user: int, arguments: list[object], *namespaces: str, groups: str = "--clear-groups") -> list[str]:
    """Return the command that runs another one as a user, in namespaces of its own."""
    whole = ["setpriv", f"--reuid={user}", f"--regid={user}", groups, *map(str, arguments)]
    return ["unshare", "--mount", *namespaces, "sh", "-c", f'{PREPARE} exec "$@"', "sh", *whole]


def python(
    user: int, code: str, *arguments: object, groups: str = "--clear-groups"
) -> subprocess.CompletedProcess[str]:
    made = command(user, [sys.executable, "-I", "-c", code, *arguments], groups=groups)
    return subprocess.run(made, capture_output=True, text=True, cwd="/")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user can enter."""
    if os.geteuid() or not all(map(shutil.which, ("unshare", "setpriv"))) or python(SITE, "import coterie").returncode:
        pytest.skip("this test needs the right to run processes as other users, and Python where they can read it")
    folder = Path(tempfile.mkdtemp(prefix="coterie-users-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def owned(folder: Path, user: int, mode: int, make: Callable[[Path], object]) -> Path:
    """Make a folder for one user."""
    folder.mkdir()
    make(folder)
    for path in (folder, *folder.rglob("*")):
        os.chown(path, user, user)
    folder.chmod(mode)
    return folder


def test_data_without_network_and_network_without_data(folder):
    settings, roster = recipe("pflego"), {}
    site = owned(folder / "site", SITE, 0o700, lambda made: write_client(settings.federation(), 0, made / "data.npz"))
    (site / policy.FILE).write_text('mode = "accept-all"\n')
    (site / policy.FILE).chmod(0o644)
    courier = owned(folder / "courier", COURIER, 0o700, lambda made: certs.site(made, "anna"))
    door = owned(folder / "door", SITE, 0o755, lambda _: None) / "s" / "site.sock"
    transport = FlowerTransport(folder / "server", "127.0.0.1:0", None, lambda: roster)
    roster[certs.openssh((courier / "anna.pub").read_bytes())] = "anna"
    coterie, shared = [sys.executable, "-m", "coterie"], f"--groups={GROUP_ID}"
    places = ["--name", "anna", "--data", site / "data.npz", "--state", site, "--group", GROUP, "--socket", door]
    reach = ["--server", transport.address, "--key", courier / "anna.key", "--state", courier / "state", "--insecure"]
    commands = [
        command(SITE, [*coterie, "client", *places], "--net", groups=shared),
        command(COURIER, [*coterie, "courier", *reach, "--socket", door], groups=shared),
    ]
    log = (folder / "log").open("wb")
    running = [subprocess.Popen(each, stdout=log, stderr=log, cwd="/") for each in commands]
    try:
        until(lambda: transport.connected() == {"anna"}, "the site is connected")
        answer = decode(dict(transport.ask({"anna": encode("hello", {})}, 60))["anna"])
        assert answer.kind == "facts"
        assert answer.head["splits"]["train"] > 0

        network = Path(f"/proc/{running[0].pid}/net/dev").read_text().splitlines()[2:]
        assert [line.split(":")[0].strip() for line in network] == ["lo"]
        assert len(Path(f"/proc/{running[0].pid}/net/route").read_text().splitlines()) <= 1
        read = "import sys; open(sys.argv[1], 'rb').read(1)"
        for user, file, allowed in (
            (SITE, site / "data.npz", True),
            (COURIER, site / "data.npz", False),
            (STRANGER, site / "data.npz", False),
            (COURIER, courier / "anna.key", True),
            (SITE, courier / "anna.key", False),
        ):
            ended = python(user, read, file, groups=shared if user != STRANGER else "--clear-groups")
            assert (ended.returncode == 0) is allowed, (user, file, ended.stderr)
            assert allowed or "PermissionError" in ended.stderr
        connect = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"
        assert python(COURIER, connect, door, groups=shared).returncode == 0
        assert "PermissionError" in python(STRANGER, connect, door).stderr
    finally:
        for process in running:
            process.terminate()
            process.wait(30)
        transport.close()
        log.close()
