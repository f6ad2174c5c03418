"""A backup was restored, or another version installed: what happens, and what a person can do."""

import shutil
from pathlib import Path

import numpy as np
import pytest

import reference as ref
from commands import coterie, in_folder
from coterie.data.federation import Federation
from coterie.errors import StoppedError
from coterie.sites import certs, policy
from coterie.sites.agent import Agent
from coterie.sites.beginning import Beginning
from coterie.training import Training
from sites.direct import Direct, ready, simulated
from sites.test_equality import assert_equal, recipe, states

SETTINGS = recipe("pflego", clients_per_round=None, rounds=6)


@pytest.fixture
def federation() -> Federation:
    return ref.federation((5, 3, 8), new=0)


class Restoring(Direct):
    """Sites that were started with --restored, if they are named."""

    restored: frozenset[str] = frozenset()

    def agent(self, name: str) -> Agent:
        made = super().agent(name)
        made.restored = name in self.restored
        return made


def play(transport: Direct, out: Path, until: int):
    """Start or resume a run, and stop it after a round."""
    made = ready(SETTINGS, transport, list(transport.own), Beginning() if out.exists() else None)
    training = Training(made.asking.recipe, made.prepared, out, resume=out.exists())
    try:
        return training.play(should_stop=lambda: len(training.rounds.history) >= until)
    except KeyboardInterrupt:
        return None


@pytest.mark.parametrize("what", ["site", "no state", "run"])
def test_an_older_folder_stops_the_run_until_a_person_decides(what, federation, tmp_path):
    transport, out = Restoring(federation, tmp_path / "sites"), tmp_path / "run"
    name = federation.ids[0]
    old = out if what == "run" else tmp_path / "sites" / name
    play(transport, out, 2)
    shutil.copytree(old, tmp_path / "backup")
    play(transport, out, 4)
    shutil.rmtree(old)
    shutil.copytree(tmp_path / "backup", old)
    if what == "no state":
        shutil.rmtree(next((old / "runs").iterdir()) / "state")
    kept = {file: file.read_bytes() for file in (tmp_path / "sites" / name).rglob("*.safetensors")}

    with pytest.raises(
        StoppedError, match=r"the server expects .* after round \d, and it is after round \d.*--restored"
    ):
        play(transport, out, 6)
    if what != "no state":  # which is begun again
        assert {file: file.read_bytes() for file in (tmp_path / "sites" / name).rglob("*.safetensors")} == kept

    transport.restored = frozenset(federation.ids if what == "run" else [name])
    run = play(transport, out, 6)
    assert [record.round for record in run.history] == [1, 2, 3, 4, 5, 6]
    assert all(not record.refused for record in run.history)
    transport.restored = frozenset()
    expected = simulated(SETTINGS, federation)
    with pytest.raises(AssertionError):  # a state was lost, or a round played twice
        assert_equal(states(transport)[name], expected.personal(name), name)


def test_a_run_is_resumed_with_another_version_and_sites_are_asked_again(federation, tmp_path, monkeypatch):
    transport, out = Direct(federation, tmp_path / "sites"), tmp_path / "run"
    play(transport, out, 3)
    for module in ("server", "agent", "facts"):
        monkeypatch.setattr(f"coterie.sites.{module}.version", lambda _: "99.0")
    folder = tmp_path / "sites" / federation.ids[0]
    (folder / policy.FILE).write_text("")
    with pytest.raises(StoppedError, match=f"{federation.ids[0]} did not accept the run that is resumed"):
        play(transport, out, 6)
    (asked,) = policy.pending(folder)
    assert asked.terms.version == "99.0"
    policy.decide(folder, asked.digest, True)
    run, expected = play(transport, out, 6), simulated(SETTINGS, federation)
    assert_equal(run.shared, expected.shared, "shared")
    for name, own in states(transport).items():
        assert_equal(own, expected.personal(name), name)


def test_what_is_wrong_with_a_connection_is_said_before_any_attempt(tmp_path, monkeypatch, capsys):
    certs.new(tmp_path / "tls", ["127.0.0.1"])
    certs.site(tmp_path, "anna")
    np.savez(tmp_path / "anna.npz", x=np.zeros((8, 3), np.float32), y=np.array([0, 1] * 4))
    own = ("--name", "anna", "--data", "anna.npz", "--state", "anna")
    for wrong, sentence in (
        (("--server", "127.0.0.1", "--ca", "tls/ca.crt"), "the address of a server is HOST:PORT"),
        (
            ("--server", "192.0.2.7:8443", "--insecure"),
            "without TLS, only this machine may be the server, not 192.0.2.7",
        ),
        (("--server", "127.0.0.1:8443", "--ca", "ca.crt"), "there is no certificate ca.crt"),
        (("--server", "127.0.0.1:8443"), "give either --ca FILE"),
        (("--server", "127.0.0.1:8443", "--ca", "tls/ca.crt", "--key", "bob.key"), "there is no key bob.key"),
    ):
        with in_folder(tmp_path, monkeypatch):
            assert coterie(monkeypatch, "client", *own, *wrong) == 2
        assert f"error: {sentence}" in capsys.readouterr().err
    assert not (tmp_path / "anna").exists()
