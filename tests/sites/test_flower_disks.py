"""Full disks of a courier and of a SuperLink: both say so, wait for space, and lose nothing."""

import json
import os
import threading

from coterie.clients import flower_store
from coterie.clients.flower_server import FlowerTransport
from coterie.clients.flower_store import Held, Store
from realsites import Site, sites, until
from sites.disks import fill, small  # noqa: F401 - a fixture


def test_a_courier_waits_for_space(small, capsys, monkeypatch):  # noqa: F811
    monkeypatch.setattr(flower_store, "PAUSE", 0.05)
    store = Store(small / "courier")
    store.set_node(7)
    ballast, held = fill(small), Held({"received": 0.0, "ttl": 1e12}, os.urandom(100_000))
    holding = threading.Thread(target=store.hold, args=(held,))
    holding.start()
    told = ""
    while "held" not in told:
        told += capsys.readouterr().out
    assert json.loads(told.splitlines()[-1])["text"].endswith("held: No space left on device; trying again")
    assert store.node() == 7
    assert store.held() is None
    ballast.unlink()
    holding.join()
    assert store.held() == held
    store._lock.close()


def test_a_superlink_with_a_full_disk_answers_again_when_there_is_space(small, tmp_path):  # noqa: F811
    roster, told = {}, []
    server = FlowerTransport(small / "server", "127.0.0.1:0", None, lambda: roster, told=told.append)
    try:
        site = Site(tmp_path, "north", server.address)
        roster[site.public] = "north"
        with sites(site):
            site.start()
            until(lambda: server.connected() == {"north"}, "the site is connected")
            ballast = fill(small)
            content = os.urandom(3 << 20)
            answers = dict(server.ask({"north": content}, 3))
            assert answers["north"].code in ("late", "lost")
            until(lambda: any("has failed in a call" in sentence for sentence in told), "the server tells")
            ballast.unlink()
            assert dict(server.ask({"north": content}, 60)) == {"north": b"north:" + content}
    finally:
        server.close()
