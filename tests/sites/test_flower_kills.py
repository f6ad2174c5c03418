"""The server loop is killed, and what it has started ends with it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from coterie.clients.flower_command import child_command
from coterie.clients.flower_server import free_port
from realsites import HERE, PATIENCE, Site, is_alive, sites, until


class Loop:
    """A server in a process of its own, which asks its sites for ever."""

    def __init__(self, folder, port, roster):
        self.folder, self.port, self.out = folder, port, folder / "out"
        (folder / "roster.json").write_text(json.dumps(roster))

    def start(self, mode):
        arguments = [str(self.folder / "server"), f"127.0.0.1:{self.port}", str(self.folder / "roster.json"), mode]
        source = Path(__file__).parents[2] / "src"
        with self.out.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / "server_loop.py"), *arguments],
                env={**os.environ, "PYTHONPATH": str(source)},
                stdout=out,
                stderr=out,
            )

    def lines(self, start):
        return [line for line in self.out.read_text().splitlines() if line.startswith(start)]

    def children(self):
        folder = Path(f"/proc/{self.process.pid}/task")
        return [int(pid) for task in folder.iterdir() for pid in (task / "children").read_text().split()]

    def kill(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture
def loop(tmp_path):
    port = free_port()
    site = Site(tmp_path, "north", f"127.0.0.1:{port}")
    loop = Loop(tmp_path, port, {site.public: "north"})
    loop.site = site
    with sites(site):
        loop.start("fresh")
        try:
            site.start()
            until(lambda: loop.lines("reply"), "the first reply")
            yield loop
        finally:
            loop.kill()


def test_after_a_sigkill_the_next_server_loop_continues_in_the_same_run(loop):
    children = loop.children()
    assert len(children) == 2
    run = json.loads((loop.folder / "server" / "link.json").read_text())
    loop.kill()
    until(lambda: not any(map(is_alive, children)), "the SuperLink and the gateway have ended")
    loop.start("resume")
    until(lambda: any(line.endswith(str(loop.process.pid)) for line in loop.lines("reply")), "a reply to the next one")
    assert loop.lines("told") == ["told submitted a new Flower run", "told continued in the same Flower run"]
    assert json.loads((loop.folder / "server" / "link.json").read_text()) == run
    assert loop.site.courier.poll() is None  # the same courier, which has waited for the server
    assert {line.split()[2].partition(":")[0] for line in loop.lines("reply")} == {"north"}


@pytest.mark.slow
def test_after_the_lease_the_next_server_loop_submits_a_new_run(loop):
    loop.kill()
    time.sleep(65)
    loop.start("resume")
    until(lambda: any(line.endswith(str(loop.process.pid)) for line in loop.lines("reply")), "a reply to the next one")
    assert loop.lines("told") == ["told submitted a new Flower run"] * 2


def test_a_child_ends_with_its_parent(tmp_path):
    (tmp_path / "parent.py").write_text(
        "import subprocess, sys, time\n"
        f"sys.path.insert(0, {str(Path(__file__).parents[2] / 'src')!r})\n"
        "import runpy\n"
        "command = runpy.run_path(sys.argv[1])['child_command']\n"
        "child = subprocess.Popen(command('coterie.clients.flower_courier', *sys.argv[2:]))\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    site = Site(tmp_path, "site", "127.0.0.1:1")
    command = Path(child_command.__code__.co_filename)
    options = ["--server", site.server, "--key", site.folder / "key", "--insecure"]
    options += ["--socket", site.socket, "--state", site.folder / "courier"]
    arguments = [sys.executable, tmp_path / "parent.py", command, *options]
    with subprocess.Popen(list(map(str, arguments)), stdout=subprocess.PIPE) as parent:
        child = int(parent.stdout.readline())
        assert b"waiting for the server" in parent.stdout.readline()
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait(timeout=PATIENCE)
        until(lambda: not is_alive(child), "the child has ended")
