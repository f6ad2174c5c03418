"""Whole runs with real processes on the loopback address: `coterie server` and `coterie client`, with TLS."""

import signal
import socket
from dataclasses import replace

import pytest
import tomli_w
from safetensors.torch import load_file

import coterie
from coterie.sites import sent
from coterie.sites.local import Local
from coterie.storage.files import unpacked
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
    written,
)
from sites.test_equality import assert_equal

METHODS = ("pflego", "scafflix", "ditto", "fedavg", "scaffold", "fedpac")
"""PFLEGO is in the default tests. The last one sends letters to single sites."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=[] if name == "pflego" else [pytest.mark.slow]) for name in METHODS]
)
def test_real_processes_end_with_the_bits_of_a_simulation(method, tmp_path):
    """A site is killed after the second round, and started again: it continues with its own state.

    No round begins without it, so that the cohorts are those of a simulation, however long its start takes.
    """
    settings = recipe(method)
    with local(settings, tmp_path / "all", "--minimum", "4") as made:
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


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_site_slower_than_the_deadline_is_left_out_of_its_rounds(tmp_path):
    """Its courier is connected and it is asked, but the site process stands still for longer than two rounds."""
    settings = recipe("pflego", 8)
    settings = replace(settings, run=replace(settings.run, clients_per_round=None))
    with local(settings, tmp_path / "all", "--deadline", "15", "--quorum", "0.5") as made:
        until(made, lambda: rounds(made) >= 2, "two rounds")
        made.sites["1"].send_signal(signal.SIGSTOP)
        try:
            until(
                made, lambda: any(record.refused for record in written(made.run / "rounds.jsonl")), "a round without it"
            )
        finally:
            made.sites["1"].send_signal(signal.SIGCONT)
        ended(made)
        refused = [record.refused for record in coterie.load(made.run).history if record.refused]
        assert {"1": "no reply within 15 s"} in refused
        assert_as_replayed(made, settings)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_new_site_gets_a_model_of_a_finished_run(tmp_path):
    """`coterie client --personalize` ends with a model on the site's own disk."""
    settings = recipe("pflego", 3)
    with Local(tmp_path / "all", settings.federation(), free_port()) as made:
        made.prepare()
        tree = {name: table for name, table in settings.as_dict().items() if name not in ("data", "partition")}
        (made.folder / "recipe.toml").write_text(tomli_w.dumps(tree))
        made.start_server(["--recipe", str(made.folder / "recipe.toml"), *OPTIONS, "--sites", "3", "--serve"])
        for name in ("0", "1", "2"):
            made.start_site(name)
        until(made, lambda: "the run has ended" in (made.folder / "server.log").read_text(), "the end of the run")
        made.start_site("3", "--personalize")
        until(made, lambda: made.sites["3"].poll() is not None, "the model of the new site")
        assert made.sites["3"].returncode == 0
        shared, own = coterie.load(made.run).shared, coterie.load(made.site("3"))
        assert own.ids == ("3",)
        assert len(own.model().classes) == 4
        assert "3" not in coterie.load(made.run).ids
        stored = unpacked(load_file(next((made.site("3") / "runs").glob("*/shared.safetensors"))))
        assert_equal(stored, shared, "shared")
        kinds = [each.kind for each in sent.read(made.site("3"))]
        assert kinds == ["facts", "accepted", "personalized"] or set(kinds) == {"accepted", "personalized"}


def test_a_port_in_use_is_named(tmp_path):
    settings = recipe("pflego")
    with Local(tmp_path / "all", settings.federation(), free_port()) as made:
        made.prepare()
        with socket.create_server(("127.0.0.1", made.port)):
            (tmp_path / "recipe.toml").write_text(tomli_w.dumps({"method": {"name": "pflego"}}))
            made.start_server(["--recipe", str(tmp_path / "recipe.toml")])
            until(made, lambda: made.server.poll() is not None, "the end of the server")
        assert made.server.returncode == 2
        assert f"cannot listen at 127.0.0.1:{made.port}" in (made.folder / "server.log").read_text().replace("\n", " ")
