"""Training stored runs again and comparing every digit."""

import json

import pytest

from commands import coterie, in_folder
from coterie import registry
from coterie.lab.claims import declared
from coterie.lab.claims.check import Outcome, choose, replay, table
from coterie.lab.claims.stored import Results
from coterie.lab.papers import numbers

TINY = declared.Folder(experiment="tiny", scale="small", methods="pflego,fedavg", page="unused.md")


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    monkeypatch.setitem(registry.BUILT_IN["experiment"], "tiny", "tiny:Tiny")
    monkeypatch.setattr(declared, "folders", lambda: {"tiny-small": TINY})
    monkeypatch.setattr("coterie.lab.claims.stored.folders", declared.folders)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """runs.json of two methods."""
    out = tmp_path_factory.mktemp("stored")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry.BUILT_IN["experiment"], "tiny", "tiny:Tiny")
        campaign = TINY.campaign(out)
        for cell in campaign.missing():
            campaign.play(cell, campaign.training(cell), lambda _: None, lambda: False)
        campaign.report()
    return json.loads((out / "runs.json").read_text())


@pytest.fixture
def store(measured, tmp_path):
    """Writes changed figures of the run of PFLEGO, and returns the results."""

    def write(**changed):
        tree = json.loads(json.dumps(measured))
        tree["digits-pflego"]["seeds"]["0"].update(changed)
        folder = tmp_path / "results" / "tiny-small"
        folder.mkdir(parents=True)
        (folder / "runs.json").write_text(json.dumps(tree))
        return Results(tmp_path / "results")

    return write


def replayed(results, out, method="pflego"):
    (choice,) = [each for each in choose(results, 9, 0) if each.cell.at["method"] == method]
    return replay(results, choice, out, lambda: False)


def test_a_run_gives_the_same_digits(store, tmp_path):
    found = replayed(store(), tmp_path / "again")
    assert (found.outcome, found.expected) == (Outcome.EQUAL, True)
    assert {"figure.mean", "figure.stderr", "as_is.mean", "train_loss", "flops"} <= found.pairs.keys()
    assert not [name for name in found.pairs if name.startswith(("seconds", "numbers", "curve"))]


def test_last_digits_are_told_from_printed_ones(store, measured, tmp_path):
    mean, stderr = measured["digits-pflego"]["seeds"]["0"]["as_is"]
    found = replayed(store(as_is=[mean + 1e-9, stderr]), tmp_path / "again")
    assert (found.outcome, found.expected) == (Outcome.PRINTED, True)
    assert found.told()[2].startswith("as_is.mean ")


def test_another_figure_of_current_code_is_not_expected(store, measured, tmp_path):
    mean, stderr = measured["digits-pflego"]["seeds"]["0"]["figure"]
    results = store(figure=[mean + 1, stderr])
    found = replayed(results, tmp_path / "again")
    assert (found.outcome, found.expected) == (Outcome.DIFFERENT, False)
    assert found.told()[1:] == ["different", f"figure.mean {mean + 1!r}, now {mean!r}", "current"]


def test_another_figure_of_older_code_is_expected(store, measured, tmp_path):
    mean, stderr = measured["digits-pflego"]["seeds"]["0"]["figure"]
    found = replayed(store(figure=[mean + 1, stderr], numbers=0), tmp_path / "again")
    assert (found.outcome, found.expected) == (Outcome.DIFFERENT, True)
    assert found.told()[3] == "older"
    assert table([found]).notes[1].startswith("Older: since then standard errors")


def test_runs_that_took_long_are_not_chosen(store):
    results = store(seconds=1000.0)
    assert [choice.cell.at["method"] for choice in choose(results, 9, 0)] == ["fedavg"]
    assert choose(results, 1, 3) == choose(results, 1, 3)


def test_the_command_fails_if_current_figures_differ(store, measured, tmp_path, monkeypatch, capsys):
    store(figure=[1.0, 1.0])
    with in_folder(tmp_path, monkeypatch):
        assert coterie(monkeypatch, "claims", "--check", "--cells", 2) == 1
    printed = capsys.readouterr().out
    assert "tiny-small digits-pflego-seed0" in printed
    assert "every digit is equal" in printed
    assert {path.name for path in tmp_path.iterdir()} == {"results"}


def test_stored_runs_have_the_version_of_the_numbers(measured):
    assert {run["numbers"] for row in measured.values() for run in row["seeds"].values()} == {numbers.VERSION}


def test_a_run_that_begins_before_a_change_and_ends_after_it_is_older(tmp_path, monkeypatch):
    campaign = TINY.campaign(tmp_path)
    cell = campaign.missing()[0]
    with pytest.raises(KeyboardInterrupt):
        campaign.play(cell, campaign.training(cell), lambda _: None, lambda: True)
    monkeypatch.setattr(numbers, "VERSION", numbers.VERSION + 1)
    campaign.play(cell, campaign.training(cell), lambda _: None, lambda: False)
    ((_, figures),) = campaign.finished()
    assert figures.numbers == numbers.VERSION - 1


def test_changes_concern_their_methods(monkeypatch):
    changes = (numbers.Change("first"), numbers.Change("second", ("apfl",)))
    monkeypatch.setattr(numbers, "CHANGES", changes)
    assert numbers.later(0, "apfl") == list(changes)
    assert numbers.later(0, "pflego") == [changes[0]]
    assert numbers.later(1, "pflego") == numbers.later(2, "apfl") == []


def test_the_table_has_a_line_for_each_run(store, tmp_path):
    found = replayed(store(), tmp_path / "again")
    assert [line[0] for line in table([found]).lines] == ["tiny-small digits-pflego-seed0"]
