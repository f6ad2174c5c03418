"""What is left of a campaign whose run folders are gone."""

import json
import shutil

import pytest

from coterie import registry
from coterie.errors import UserError
from coterie.lab.papers.campaign import Campaign
from coterie.lab.papers.kept import Kept


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    monkeypatch.setitem(registry.BUILT_IN["experiment"], "tiny", "tiny:Tiny")


def campaign(
    out, methods=("pflego", "fedavg"), seeds=2, changes=("partition.validation=0.25", "partition.new_users=0.2")
):
    return Campaign("tiny", {"method": list(methods)}, "small", seeds, out, changes)


def run(these):
    for cell in these.missing():
        these.play(cell, these.training(cell), lambda _: None, lambda: False)
    these.report()
    return json.loads((these.out / "table.json").read_text())["rows"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A campaign of two methods and two seeds: (its folder, the rows of its table)."""
    out = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry.BUILT_IN["experiment"], "tiny", "tiny:Tiny")
        return out, run(campaign(out))


@pytest.fixture
def bare(finished, tmp_path):
    """Only runs.json of it."""
    shutil.copy(finished[0] / "runs.json", tmp_path)
    return tmp_path


def test_the_figures_of_the_runs_are_enough(finished, bare):
    again = campaign(bare)
    assert again.missing() == []
    assert run(again) == finished[1]
    assert {path.name for path in bare.iterdir()} == {
        "figure.svg",
        "page.html",
        "runs.json",
        "table.json",
        "table.md",
    }


def test_a_part_of_a_campaign_leaves_the_other_rows_in_the_table(finished, bare):
    assert [row["method"] for row in finished[1]] == ["pflego", "fedavg"]
    assert run(campaign(bare, methods=["fedavg"])) == finished[1]
    other = campaign(bare, methods=["fedavg"], changes=("run.seed=5",))
    other.report()
    assert [row["method"] for row in json.loads((bare / "table.json").read_text())["rows"]] == ["fedavg"]


def test_two_processes_keep_what_the_other_has_measured(finished, bare):
    cells = {cell.name: cell for cell in campaign(bare).rows[0] + campaign(bare).rows[1]}
    whole = Kept(bare / "runs.json")
    mine, theirs = Kept(bare / "apart" / "runs.json"), Kept(bare / "apart" / "runs.json")
    (bare / "apart").mkdir()
    for kept, names in ((mine, ["digits-pflego-seed0", "digits-fedavg-seed0"]), (theirs, ["digits-fedavg-seed1"])):
        for name in names:
            kept.keep(cells[name], whole.measured(cells[name]))
        kept.write()
    found = json.loads((bare / "apart" / "runs.json").read_text())
    assert {row: set(kept["seeds"]) for row, kept in found.items()} == {
        "digits-pflego": {"0"},
        "digits-fedavg": {"0", "1"},
    }


def test_the_table_has_what_another_process_has_kept_meanwhile(finished, bare):
    (bare / "runs.json").rename(bare / "later.json")
    begun = campaign(bare)
    (bare / "later.json").rename(bare / "runs.json")
    begun.report()
    assert json.loads((bare / "table.json").read_text())["rows"] == finished[1]


def test_users_are_measured_where_validation_picks(finished):
    out, rows = finished
    records = [json.loads(line) for line in (out / "digits-fedavg-seed1" / "rounds.jsonl").read_text().splitlines()]
    evaluated = [record for record in records if "eval" in record]
    best = max(evaluated, key=lambda record: record["eval"]["validation"]["existing"]["adapted"]["mean"])
    kept = json.loads((out / "runs.json").read_text())["digits-fedavg"]["seeds"]["1"]["picked"]
    assert kept["round"] == best["round"]
    assert kept["after"]["mean"] == pytest.approx(100 * best["eval"]["new"]["after"]["mean"])
    both = json.loads((out / "runs.json").read_text())["digits-fedavg"]["seeds"]
    mean = sum(both[seed]["picked"]["adapted"]["mean"] for seed in "01") / 2
    assert {row["method"]: row for row in rows}["fedavg"]["users"]["adapted"]["mean"]["mean"] == pytest.approx(mean)


def test_what_is_not_there_is_run_and_what_is_not_asked_for_stays(bare):
    more = campaign(bare, ["fedavg"], seeds=3)
    assert [cell.name for cell in more.missing()] == ["digits-fedavg-seed2"]
    run(more)
    kept = json.loads((bare / "runs.json").read_text())
    assert {row: sorted(each["seeds"]) for row, each in kept.items()} == {
        "digits-pflego": ["0", "1"],
        "digits-fedavg": ["0", "1", "2"],
    }


def test_runs_of_another_recipe_are_not_taken_for_these(bare):
    other = campaign(bare, changes=["partition.validation=0.5", "partition.new_users=0.2"])
    with pytest.raises(UserError, match=r"another recipe: partition.validation \(0.25 there, 0.5 here\)"):
        other.missing()
    other.report()
    assert "digits-pflego-seed0 was run with another recipe" in (bare / "table.md").read_text()


def test_a_run_that_is_older_than_a_setting_is_still_finished(bare):
    content = json.loads((bare / "runs.json").read_text())
    del content["digits-pflego"]["recipe"]["method"]["server"]
    (bare / "runs.json").write_text(json.dumps(content))
    assert campaign(bare).missing() == []
