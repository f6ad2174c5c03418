"""Whole runs with real processes on the loopback address: `coterie server` and `coterie client`, with TLS."""

import socket

import pytest
import tomli_w

from coterie.sites.local import Local
from sites.deployment import (
    OPTIONS,
    assert_as_replayed,
    assert_as_simulated,
    ended,
    free_port,
    kill,
    local,
    recipe,
    rounds,
    until,
)

METHODS = ("pflego", "scafflix", "ditto", "fedavg", "scaffold", "fedpac")
"""PFLEGO is in the default tests. The last one sends letters to single sites."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=[] if name == "pflego" else [pytest.mark.slow]) for name in METHODS]
)
def test_real_processes_end_with_the_bits_of_a_simulation(method, tmp_path):
    """A site is killed after the second round, and started again: it continues with its own state."""
    settings = recipe(method)
    with local(settings, tmp_path / "all") as made:
        until(made, lambda: rounds(made) >= 2, "two rounds")
        kill(made.sites["1"])
        made.start_site("1")
        ended(made)
        assert_as_simulated(made, settings)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_everything_is_killed_in_turn_and_nothing_is_lost(tmp_path):
    """While a site is not connected it is not asked, so the cohorts differ from those of an undisturbed run."""
    settings = recipe("pflego", 14)
    with local(settings, tmp_path / "all") as made:
        for after, who in ((2, "site"), (4, "courier"), (6, "gateway"), (8, "superlink"), (10, "server"), (12, "all")):
            until(made, lambda after=after: rounds(made) >= after, f"round {after}")
            killed = {"site": ["0"], "all": made.federation.ids}.get(who, [])
            for name in killed:
                kill(made.sites[name])
            if who in ("server", "all"):
                kill(made.server)
                made.start_server(OPTIONS)
            for name in killed:
                made.start_site(name)
            if who == "courier":
                kill(made.sites["2"], "courier")
            if who in ("gateway", "superlink"):
                kill(made.server, who)
        ended(made)
        assert_as_replayed(made, settings)


def test_a_port_in_use_is_named(tmp_path):
    settings = recipe("pflego")
    with Local(tmp_path / "all", settings.federation(), free_port()) as made:
        made.prepare()
        with socket.create_server(("127.0.0.1", made.port)):
            (tmp_path / "recipe.toml").write_text(tomli_w.dumps({"method": {"name": "pflego"}}))
            made.start(["--recipe", str(tmp_path / "recipe.toml")])
            until(made, lambda: made.server.poll() is not None, "the end of the server")
        assert made.server.returncode == 2
        assert f"cannot listen at 127.0.0.1:{made.port}" in (made.folder / "server.log").read_text().replace("\n", " ")
