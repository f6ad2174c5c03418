"""Long runs: something is killed all the time, and no question is lost."""

import os
import random
import signal
import threading

import pytest

from coterie.clients.flower_server import FlowerTransport
from realsites import Site, sites, until

NAMES = ("north", "south", "east", "west")


class Killer:
    """Kills a process every few seconds. What no one else starts again, it does."""

    def __init__(self, transport, all_sites):
        self.transport, self.sites, self.killed = transport, all_sites, []
        self.draw, self.stopped = random.Random(0), threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while not self.stopped.wait(5):
            self.killed.append(kind := self.draw.choice(["courier", "site process", "gateway", "SuperLink"]))
            site = self.draw.choice(self.sites)
            if kind == "courier":
                site.courier.kill()
                site.courier.wait()
                site.start_courier()
            elif kind == "site process":
                site.restart_process(0.5)
            else:
                for child in self.transport._children._children:
                    if child.name == kind and child.process is not None:
                        os.kill(child.process.pid, signal.SIGKILL)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stopped.set()
        self.thread.join()


@pytest.mark.slow
def test_no_question_is_lost_while_everything_is_killed(tmp_path):
    roster = {}
    transport = FlowerTransport(tmp_path / "server", "127.0.0.1:0", None, lambda: roster)
    all_sites = [Site(tmp_path, name, transport.address) for name in NAMES]
    roster |= {site.public: site.name for site in all_sites}
    try:
        with sites(*all_sites):
            for site in all_sites:
                site.start(0.5)
            until(lambda: transport.connected() == set(NAMES), "all sites are connected")
            with Killer(transport, all_sites) as killer:
                for number in range(30):
                    requests = {name: b"%d " % number + os.urandom(100_000) for name in NAMES}
                    answers = dict(transport.ask(requests, 60))
                    assert answers == {name: name.encode() + b":" + request for name, request in requests.items()}
            assert set(killer.killed) == {"courier", "site process", "gateway", "SuperLink"}
    finally:
        transport.close()


@pytest.mark.slow
def test_large_messages_of_many_sites(tmp_path):
    roster = {}
    transport = FlowerTransport(tmp_path / "server", "127.0.0.1:0", None, lambda: roster)
    all_sites = [Site(tmp_path, f"site-{number}", transport.address) for number in range(8)]
    roster |= {site.public: site.name for site in all_sites}
    try:
        with sites(*all_sites):
            for site in all_sites:
                site.start()
            until(lambda: len(transport.connected()) == 8, "all sites are connected")
            requests = {site.name: os.urandom(20 << 20) for site in all_sites}
            answers = dict(transport.ask(requests, 200))
            assert answers == {name: name.encode() + b":" + request for name, request in requests.items()}
    finally:
        transport.close()
