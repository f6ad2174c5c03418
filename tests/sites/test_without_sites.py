"""A run is resumed without sites that are gone: it ends like a simulation in which they are absent from then on."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import reference as ref
from commands import coterie, in_folder
from coterie.clients.wire import decode
from coterie.data.federation import Federation
from coterie.errors import StoppedError, UserError
from coterie.models.logreg import LogReg
from coterie.prepare import prepare
from coterie.recipe import Recipe
from coterie.run import Run
from coterie.server.population import Presence
from coterie.sites import beginning, presence
from coterie.sites.beginning import FILE, Left, sites_to_begin, sites_to_resume
from coterie.sites.roster import Roster
from coterie.storage.folder import SERVER
from coterie.training import Training
from sites.direct import Direct, ready, simulated
from sites.test_equality import assert_equal, recipe, states
from sites.test_faults import METHODS, Crash

GONE = "client-1"


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(beginning, "PAUSE", 0.01)
    monkeypatch.setattr(presence, "PAUSE", 0.01)


@pytest.fixture
def federation() -> Federation:
    return ref.federation((5, 3, 8, 4), new=0)


class Listed(Direct):
    """Sites of which some may be removed from the list of sites, or come back in a round."""

    removed: frozenset[str] = frozenset()
    back: int | None = None
    """Round before which all sites are connected again."""

    def connected(self):
        return super().connected() - self.removed

    def ask(self, requests, seconds, enough=lambda _: False):
        yield from super().ask(requests, seconds, enough)
        heads = [decode(request).head for request in requests.values()]
        if self.back is not None and self.back - 1 in [head["round"]["index"] for head in heads if "told" in head]:
            self.away = set()

    def listed(self) -> set[str]:
        return set(self.own) - self.removed


def settings(method: str = "pflego", **run) -> Recipe:
    return recipe(method, clients_per_round=None, **{"rounds": 6, **run})


def play(made: Recipe, transport: Listed, out: Path, until: int = 6, minimum: int = 1, **options) -> Run | None:
    """Start or resume a run as `coterie server` does, and stop it after a round."""
    left = Left.of(out) if (out / "recipe.toml").exists() else None
    waiting = (0.02, lambda: False)
    if left is None:
        names = sites_to_begin(transport, transport.listed, None, *waiting)
    else:
        names = sites_to_resume(transport, transport.listed, left, minimum, *waiting)
    gathered = ready(made, transport, names, left.began if left else None, **{"seconds": 0.05, **options})
    if left is None or left.unreadable:
        gathered.began.write(out / SERVER, gathered.origin.run)
    training = Training(gathered.asking.recipe, gathered.prepared, out, resume=left is not None)
    try:
        return training.play(should_stop=lambda: len(training.rounds.history) >= until)
    except KeyboardInterrupt:
        return None


class Absent(Presence):
    """A simulation in which one client is absent in some rounds."""

    def __init__(self, number: int, client: int, rounds: range) -> None:
        self._everyone, self._client, self._rounds = np.arange(number), client, rounds

    def present(self, index: int) -> np.ndarray:
        return self._everyone[self._everyone != self._client] if index in self._rounds else self._everyone


def absent(made: Recipe, federation: Federation, rounds: range) -> Run:
    """Simulate the run as if GONE had been absent in some rounds."""
    made = replace(made, run=replace(made.run, checkpoint_every=1), engine=replace(made.engine, kind="loop"))
    prepared = prepare(made, federation)
    prepared.rounds.population = Absent(len(federation.ids), federation.ids.index(GONE), rounds)
    return Training(made, prepared).play()


def assert_same(found: Run, expected: Run, transport: Direct, names) -> None:
    assert_equal(found.shared, expected.shared, "shared")
    for mine, theirs in zip(found.history, expected.history, strict=True):
        assert (mine.cohort, mine.train_loss, mine.eval, mine.notes, mine.refused) == (
            theirs.cohort, theirs.train_loss, theirs.eval, theirs.notes, {},
        )  # fmt: skip
    transport.own = {name: transport.own[name] for name in names}
    for name, own in states(transport).items():
        assert_equal(own, expected.personal(name), name)


@pytest.mark.parametrize(("method", "how"), [*((method, "off") for method in METHODS), ("pflego", "removed")])
def test_a_site_is_gone_for_good(method, how, federation, tmp_path, caplog):
    transport, out = Listed(federation, tmp_path / "sites"), tmp_path / "run"
    play(settings(method), transport, out, until=2)
    transport.away = {GONE}
    transport.removed = frozenset({GONE} if how == "removed" else ())
    found = play(settings(method), transport, out)
    assert_same(
        found, absent(settings(method), federation, range(3, 7)), transport, [n for n in federation.ids if n != GONE]
    )
    (told,) = [text for text in caplog.messages if "goes on without" in text]
    assert told.startswith(f"the run goes on without {GONE}: it is absent from its rounds until connected again")
    assert ("the list of sites does not have" in told) == (how == "removed")
    assert [text for text in caplog.messages if f"waiting for {GONE}" in text] == []


@pytest.mark.parametrize(("method", "crash"), [*((method, True) for method in METHODS), ("pflego", False)])
def test_a_site_comes_back_two_rounds_later(method, crash, federation, tmp_path, caplog):
    """It continues with the state after its last round. The server may have been killed in a round that it forgets."""
    caplog.set_level("INFO")
    transport, out, killed = Listed(federation, tmp_path / "sites"), tmp_path / "run", []

    def kill(name, request, answer):
        reply = answer(request)
        asked = decode(request)
        if name == GONE and asked.kind == "update" and asked.head["round"]["index"] == 3 and not killed:
            killed.append(name)
            raise Crash
        return reply

    if crash:
        transport.fault = kill
        with pytest.raises(Crash):
            play(settings(method), transport, out)
    else:
        play(settings(method), transport, out, until=2)
    assert bool(killed) == crash
    transport.away, transport.back, begun = {GONE}, 5, len(transport.log)
    found = play(settings(method), transport, out)
    assert_same(found, absent(settings(method), federation, range(3, 5)), transport, federation.ids)
    kinds = [
        kind for kind, name, *_ in transport.log[begun:] if name == GONE and kind in ("hello", "announce", "update")
    ]
    assert kinds == ["hello", "announce", "update", "update"]
    assert f"round 5: {GONE} is back, and takes part again" in caplog.messages


def test_a_site_answers_without_another_announcement(federation, tmp_path, monkeypatch):
    """It has accepted the run already, and has it on its disk."""
    monkeypatch.setattr("coterie.sites.server._asked_later", lambda *_: None)
    transport, out = Listed(federation, tmp_path / "sites"), tmp_path / "run"
    play(settings(), transport, out, until=2)
    transport.away, transport.back, begun = {GONE}, 5, len(transport.log)
    found = play(settings(), transport, out)
    assert_same(found, absent(settings(), federation, range(3, 5)), transport, federation.ids)
    assert not [kind for kind, name, *_ in transport.log[begun:] if name == GONE and kind in ("hello", "announce")]


def test_a_site_comes_back_to_a_run_that_was_made_longer(federation, tmp_path):
    """It is asked again, because it agreed to fewer rounds."""
    transport, out = Listed(federation, tmp_path / "sites"), tmp_path / "run"
    play(settings(rounds=2, eval_every=2), transport, out)
    transport.away, transport.back = {GONE}, 5
    found = play(settings(), transport, out)
    assert_same(found, absent(settings(), federation, range(3, 5)), transport, federation.ids)


def test_numbers_that_a_missing_site_has_measured_are_kept(federation, tmp_path):
    made = replace(settings("flix"), model=LogReg())
    made = replace(made, method=replace(made.method, gamma="1/trace"))
    transport, out = Listed(federation, tmp_path / "sites"), tmp_path / "run"
    play(made, transport, out, until=2)
    transport.away = {GONE}
    found = play(made, transport, out)
    assert "measure" in {kind for kind, *_ in transport.log}
    assert_same(found, absent(made, federation, range(3, 7)), transport, [n for n in federation.ids if n != GONE])


def test_a_run_with_all_its_sites_is_resumed_as_before(federation, tmp_path, caplog):
    transport, out = Listed(federation, tmp_path / "sites"), tmp_path / "run"
    play(settings(), transport, out, until=2)
    before = (out / SERVER / FILE).read_bytes()
    found = play(settings(), transport, out)
    assert_same(found, simulated(settings(), federation), transport, federation.ids)
    assert "goes on without" not in caplog.text
    assert (out / SERVER / FILE).read_bytes() == before


@pytest.mark.parametrize("how", ["off", "removed", "too few"])
def test_without_sites_that_train_nothing_is_resumed(how, tmp_path):
    federation = ref.federation((5, 3, 8, 4))
    training = {federation.ids[i] for i in federation.existing}
    transport, out = Listed(federation, tmp_path / "sites"), tmp_path / "run"
    play(settings(), transport, out, until=2)
    before = (out / "rounds.jsonl").read_bytes()
    if how == "removed":
        transport.removed = frozenset(training)
    else:
        transport.away = training - {GONE} if how == "too few" else training
    number, minimum = (1, 2) if how == "too few" else (0, 1)
    told = f"only {number} of the sites that train are there, and {minimum} are needed. Nothing has changed"
    if how == "removed":
        told = "none of the sites that trained in this run can connect any more: the list of sites has no client-0"
    with pytest.raises(StoppedError, match=told):
        play(settings(), transport, out, minimum=minimum)
    assert (out / "rounds.jsonl").read_bytes() == before
    transport.away, transport.removed = set(), frozenset()
    assert_equal(play(settings(), transport, out).shared, simulated(settings(), federation).shared, "shared")


DAMAGES = {
    "missing": lambda file: file.unlink(),
    "cut": lambda file: file.write_bytes(file.read_bytes()[:-9]),
    "changed": lambda file: file.write_bytes(file.read_bytes().replace(b"train", b"trayn", 1)),
    "empty": lambda file: file.write_bytes(b""),
    "of another run": lambda file: Left.of(file.parents[1]).began.write(file.parent, "0" * 64),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_without_its_facts_a_run_needs_all_sites(damage, federation, tmp_path, caplog):
    transport, out = Listed(federation, tmp_path / "sites"), tmp_path / "run"
    play(settings(), transport, out, until=2)
    file = out / SERVER / FILE
    whole = file.read_bytes()
    DAMAGES[damage](file)
    transport.away = {GONE}
    why = {"missing": "cannot be read: No such file", "of another run": "belongs to another run"}
    why = why.get(damage, "is damaged")
    with pytest.raises(StoppedError, match=f"waiting for {GONE}, but .* cannot be resumed, because .*{FILE} {why}"):
        play(settings(), transport, out)
    transport.removed = frozenset({GONE})
    with pytest.raises(StoppedError, match=f"{GONE} cannot connect any more, .*{FILE} {why}.*Restore it from a backup"):
        play(settings(), transport, out)
    transport.removed, transport.away = frozenset(), set()
    found = play(settings(), transport, out)
    assert "so the run can only be resumed with all sites with which it began" in caplog.text
    assert_same(found, simulated(settings(), federation), transport, federation.ids)
    assert file.read_bytes() == whole


@pytest.mark.parametrize("when", ["at once", "later"])
@pytest.mark.parametrize("what", ["sizes", "labels"])
def test_a_site_with_other_data_is_refused_by_name(what, when, federation, tmp_path, caplog):
    transport, out = Listed(federation, tmp_path / "sites"), tmp_path / "run"
    play(settings(), transport, out, until=2)
    other = ref.federation((5, 4, 8, 4) if what == "sizes" else (5, 8, 3, 4), new=0)
    changed = Direct(other, tmp_path / "other").own[GONE if what == "sizes" else "client-2"]
    transport.own[GONE] = changed
    before = (out / "rounds.jsonl").read_bytes()
    told = f"{GONE} has other data than when this run began: it had "
    if when == "at once":
        with pytest.raises(UserError, match=told):
            play(settings(), transport, out)
        assert (out / "rounds.jsonl").read_bytes() == before
        return
    transport.away, transport.back = {GONE}, 5
    found, expected = play(settings(), transport, out), absent(settings(), federation, range(3, 7))
    assert_equal(found.shared, expected.shared, "shared")
    assert len([text for text in caplog.messages if told in text]) == 1  # and not in every round


def test_a_site_that_cannot_answer_when_it_comes_back_is_asked_again(federation, tmp_path, caplog):
    transport, out, failed = Listed(federation, tmp_path / "sites"), tmp_path / "run", []
    play(settings(), transport, out, until=2)

    def failing(name, request, answer):
        if name == GONE and not failed:
            failed.append(name)
            return b""
        return answer(request)

    transport.fault, transport.away, transport.back = failing, {GONE}, 4
    found = play(settings(), transport, out)
    assert_same(found, absent(settings(), federation, range(3, 5)), transport, federation.ids)
    assert f"the answer of {GONE} cannot be read" in caplog.text


def test_the_command_goes_on_without_a_removed_site(federation, tmp_path, monkeypatch, capsys):
    """It stores what sites have said when a run begins, and reads it when the run is resumed."""
    from coterie.sites import certs

    certs.new(tmp_path / "tls", ["127.0.0.1"])
    roster = Roster(tmp_path / "tls" / "sites.json")
    for name in federation.ids:
        roster.add(name, certs.site(tmp_path, name).public.read_bytes())
    transport = Listed(federation, tmp_path / "sites")
    monkeypatch.setattr(Direct, "address", "127.0.0.1:1", raising=False)
    monkeypatch.setattr("coterie.clients.flower_server.FlowerTransport", lambda *_, **__: transport)
    changes = ("method.name=fedavg", "run.rounds=2", "run.clients_per_round=", "model.name=logreg")
    options = ("--listen", "127.0.0.1:0", "--tls", "tls", "--wait", "0", "--json")
    with in_folder(tmp_path, monkeypatch):
        sets = [f"--set={each}" for each in changes]
        assert coterie(monkeypatch, "server", "--recipe", "digits", *sets, "--out", "run", *options) == 0
        roster.remove(GONE)
        transport.away = {GONE}
        assert coterie(monkeypatch, "server", "--resume", "run", "--set=run.rounds=4", *options) == 0
        lines = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    assert [len(line["cohort"]) for line in lines] == [4, 4, 3, 3]
    assert "the run goes on without client-1" in capsys.readouterr().err
