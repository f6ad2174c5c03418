"""`coterie reproduce`: what is run, what is not run again, how it goes on, and how each mistake ends."""

import json

import pytest

from commands import coterie, in_folder
from coterie import registry
from coterie.lab.papers.campaign import Campaign, Estimate, estimate_table
from coterie.lab.papers.measured import figures_of
from coterie.recipe import Recipe
from coterie.training import Training


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    for name, target in (("tiny", "tiny:Tiny"), ("timed", "tiny:Timed"), ("mixed", "tiny:Mixed")):
        monkeypatch.setitem(registry.BUILT_IN["experiment"], name, target)
    with in_folder(tmp_path, monkeypatch):
        yield


def reproduce(monkeypatch, *arguments):
    return coterie(monkeypatch, "reproduce", *arguments)


def rows(folder):
    found = json.loads((folder / "table.json").read_text())["rows"]
    return {row["method"]: row for row in found}


def timeless(folder):
    """What a run leaves behind, but for the seconds it took."""
    summary = json.loads((folder / "summary.json").read_text())
    rounds = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    for each in (summary, *rounds):
        each["cost"] |= {"seconds": None, "eval_seconds": None}
        del each["sha256"]  # it covers the seconds, too
    last = max((folder / "checkpoint").glob("round-*"))
    return summary, rounds, (last / "shared.safetensors").read_bytes()


def stop_after(monkeypatch, rounds):
    """As if Ctrl-C came in that round, counted over all cells."""
    played = []
    play = Training.play

    def counted(self, on_round, should_stop):
        return play(self, lambda record: (played.append(1), on_round(record)), lambda: len(played) >= rounds - 1)

    monkeypatch.setattr(Training, "play", counted)
    return played


def test_all_cells_are_run_and_compared(monkeypatch, tmp_path, capsys):
    assert reproduce(monkeypatch, "tiny", "--scale", "full") == 0
    out = tmp_path / "runs" / "reproduce" / "tiny-full"
    printed = capsys.readouterr()
    for cell in ("digits-pflego-seed0", "digits-fedavg-seed0", "digits-fedper-seed0"):
        assert cell in printed.err  # the estimate, then the progress
        assert (out / cell / "rounds.jsonl").exists()
    summary = json.loads((out / "digits-fedavg-seed0" / "summary.json").read_text())
    found = rows(out)["fedavg"]
    # All of the last three rounds were evaluated, beside the fourth and the eighth, so the last ten are those four.
    rounds = [json.loads(line) for line in (out / "digits-fedavg-seed0" / "rounds.jsonl").read_text().splitlines()]
    assert [each["round"] for each in rounds if "eval" in each] == [4, 6, 7, 8]
    means = [each["eval"]["existing"]["participants"]["mean"] for each in rounds[-3:]]
    assert found["measured"]["figure"]["mean"] == pytest.approx(100 * sum(means) / 3)
    assert found["measured"]["adapted"]["mean"] == pytest.approx(100 * summary["existing"]["adapted"]["mean"])
    assert found["published"] == {"mean": 70, "stderr": 4}
    assert found["state"] == "finished"
    text = (out / "table.md").read_text()
    assert f"{found['measured']['figure']['mean']:.2f} ± {found['measured']['figure']['stderr']:.2f}" in text
    assert "70.00 ± 4.00" in text
    assert "70.00 ± 4.00" in printed.out


def test_a_cell_that_diverges_is_shown_and_not_run_again(monkeypatch, tmp_path, capsys):
    assert reproduce(monkeypatch, "tiny", "--methods", "fedper,pflego", "--out", "here") == 0
    found = rows(tmp_path / "here")
    assert found["fedper"]["state"].startswith("diverged, round ")
    assert found["fedper"]["measured"] is None
    assert found["pflego"]["state"] == "finished"
    assert "(diverged, round " in capsys.readouterr().out
    monkeypatch.setattr(Training, "play", lambda *_: pytest.fail("ran again"))
    assert reproduce(monkeypatch, "tiny", "--methods", "fedper,pflego", "--out", "here") == 0


def test_interrupted_in_a_cell_it_goes_on_to_the_same_bits(monkeypatch, tmp_path, capsys):
    arguments = ["tiny", "--methods", "pflego,fedavg", "--scale", "full"]
    assert reproduce(monkeypatch, *arguments, "--out", "whole") == 0
    with monkeypatch.context() as patch:
        stop_after(patch, 11)  # in the third round of the second cell
        assert reproduce(patch, *arguments, "--out", "parts") == 130
    assert "again to continue" in capsys.readouterr().err
    second = tmp_path / "parts" / "digits-fedavg-seed0"
    assert len((second / "rounds.jsonl").read_text().splitlines()) == 3
    assert not (second / "summary.json").exists()
    with monkeypatch.context() as patch:
        played = stop_after(patch, 100)
        assert reproduce(patch, *arguments, "--out", "parts") == 0
    assert len(played) == 5  # what was missing, and nothing of the first cell
    for cell in ("digits-pflego-seed0", "digits-fedavg-seed0"):
        assert timeless(tmp_path / "parts" / cell) == timeless(tmp_path / "whole" / cell)


def test_only_the_table(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(Training, "play", lambda *_: pytest.fail("ran"))
    assert reproduce(monkeypatch, "tiny", "--only-table", "--out", "here") == 0
    assert "(not run)" in capsys.readouterr().out
    assert [path.name for path in sorted((tmp_path / "here").iterdir())] == ["table.json", "table.md"]
    assert {row["state"] for row in rows(tmp_path / "here").values()} == {"not run"}


def test_the_table_of_a_campaign_that_is_under_way(monkeypatch, tmp_path, capsys):
    with monkeypatch.context() as patch:
        stop_after(patch, 6)
        assert reproduce(patch, "tiny", "--methods", "pflego,fedavg", "--out", "here") == 130
    assert reproduce(monkeypatch, "tiny", "--only-table", "--out", "here") == 0
    found = rows(tmp_path / "here")
    assert [found[name]["state"] for name in ("pflego", "fedavg", "fedper")] == ["finished", "2 of 4 rounds", "not run"]


def test_seeds(monkeypatch, tmp_path):
    one = ["tiny", "--methods", "pflego", "--out", "here"]
    assert reproduce(monkeypatch, *one) == 0
    first = rows(tmp_path / "here")["pflego"]["measured"]["figure"]["mean"]
    assert reproduce(monkeypatch, *one, "--seeds", "3", "--only-table") == 0
    assert rows(tmp_path / "here")["pflego"]["state"] == "1 of 3 seeds; not run"
    assert reproduce(monkeypatch, *one, "--seeds", "3") == 0
    found = rows(tmp_path / "here")["pflego"]
    means = [figures_of(tmp_path / "here" / f"digits-pflego-seed{n}", "participants").figure.mean for n in range(3)]
    assert means[0] == first
    assert len(set(means)) > 1
    assert found["measured"]["figure"]["mean"] == pytest.approx(sum(means) / 3)
    assert found["measured"]["spread"] > 0
    assert found["seeds"] == 3


def test_changes_are_for_all_cells_and_are_recorded(monkeypatch, tmp_path, capsys):
    arguments = ["tiny", "--methods", "pflego,fedavg", "--out", "here"]
    assert reproduce(monkeypatch, *arguments, "--set", "run.rounds=2", "--set", "method.tau=1") == 0
    written = json.loads((tmp_path / "here" / "table.json").read_text())
    assert written["changes"] == ["run.rounds=2", "method.tau=1"]
    assert "run.rounds=2, method.tau=1" in (tmp_path / "here" / "table.md").read_text()
    assert "drawn at random" not in (tmp_path / "here" / "table.md").read_text()
    capsys.readouterr()
    assert reproduce(monkeypatch, *arguments) == 2  # other runs than these are wanted now
    message = capsys.readouterr().err
    assert "digits-pflego-seed0 was run with another recipe: method.tau (1 there, 2 here)" in message
    assert reproduce(monkeypatch, *arguments, "--only-table") == 0
    assert "was run with another recipe: method.tau (1 there, 2 here)" in capsys.readouterr().out


def test_a_sample_of_the_clients_is_said_to_be_one(monkeypatch, tmp_path):
    assert reproduce(monkeypatch, "tiny", "--methods", "fedavg", "--out", "here", "--set", "eval.clients=5") == 0
    assert "Evaluated: a random sample of 5 clients." in (tmp_path / "here" / "table.md").read_text()


def test_a_run_that_is_older_than_a_setting_is_still_finished(monkeypatch, tmp_path):
    arguments = ["tiny", "--methods", "pflego", "--out", "here"]
    plain = Recipe.as_dict

    def earlier(self):
        tree = plain(self)
        del tree["method"]["server"]
        return tree

    with monkeypatch.context() as patch:
        patch.setattr(Recipe, "as_dict", earlier)
        assert reproduce(monkeypatch, *arguments) == 0
    assert "server" not in (tmp_path / "here" / "digits-pflego-seed0" / "recipe.toml").read_text()
    monkeypatch.setattr(Training, "play", lambda *_: pytest.fail("ran again"))
    assert reproduce(monkeypatch, *arguments) == 0


def test_seconds_a_round(monkeypatch, tmp_path, capsys):
    assert reproduce(monkeypatch, "timed", "--out", "here") == 0
    found = rows(tmp_path / "here")["fedavg"]
    assert found["published_seconds"] == 5
    assert found["published"] is None
    rounds = (tmp_path / "here" / "fedavg-seed0" / "rounds.jsonl").read_text().splitlines()
    seconds = [json.loads(line)["cost"]["seconds"] for line in rounds]
    assert found["measured"]["seconds"] == pytest.approx(sum(seconds[1:]) / 2)
    assert "2.50" in capsys.readouterr().out  # 5 s / 2 s, published


def test_cells_of_one_federation_deal_it_once(monkeypatch, tmp_path):
    dealt = []
    campaign = Campaign("tiny", {"method": ["pflego", "fedavg"]}, "small", 2, tmp_path / "here")
    missing = campaign.missing()
    assert [cell.recipe.run.seed for cell in missing] == [0, 0, 1, 1]
    monkeypatch.setattr("coterie.recipe.Recipe.federation", lambda self: dealt.append(self.run.seed) or object())
    held = [campaign._federation(cell) for cell in missing]
    assert dealt == [0, 1]
    assert held[0] is held[1] is not held[2]


def test_the_estimate(tmp_path):
    campaign = Campaign("tiny", {"method": ["pflego", "fedper"]}, "full", 1, tmp_path / "here")
    good, bad = campaign.estimates(campaign.missing(), lambda: False)
    assert (good.rounds, good.evaluations, good.visits) == (
        8,
        4,
        3.0,
    )  # evaluated: 4, 6, 7, 8; 12 clients, cohorts of 4
    assert good.seconds > 0
    assert good.total == pytest.approx(good.seconds * (8 + 4 * 3))
    assert bad.seconds != bad.seconds  # it diverges at once
    table = estimate_table([Estimate(good.cell, 8, 4, 3.0, 3.0), bad])
    assert table.lines[0] == ["digits-pflego-seed0", "8", "3 s", "1.0"]
    assert table.lines[-1] == ["total", "", "", "1.0"]
    assert not (tmp_path / "here").exists()  # nothing is left of what was timed
    with pytest.raises(KeyboardInterrupt):
        list(campaign.estimates(campaign.missing(), lambda: True))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tinny"], ["tinny", "'tiny'", "pflego-table1"]),
        (["tiny", "--degree", "high"], ["no --degree", "--data digits", "--methods pflego,fedavg,fedper"]),
        (["tiny", "--methods", "fedavgg"], ["no --methods fedavgg", "'fedavg'", "--data digits"]),
        (["tiny", "--data", "digits,mnist"], ["no --data mnist"]),
        (["tiny", "--scale", "smal"], ["--scale smal", "'small'"]),
        (["tiny", "--set", "method.eta=1"], ["digits pflego: unknown key method.eta"]),
        (["tiny", "--set", "method"], ["section.key=value"]),
        (["pflego-table2", "--data", "mnist"], ["no --data", "--methods fedper,"]),
    ],
)
def test_a_mistake(monkeypatch, tmp_path, capsys, arguments, words):
    assert reproduce(monkeypatch, *arguments) == 2
    message = capsys.readouterr().err
    assert "Traceback" not in message
    for word in words:
        assert word in message
    assert list(tmp_path.iterdir()) == []


def test_a_table_of_another_scale_is_not_overwritten(monkeypatch, tmp_path, capsys):
    """Whether the folder has its table, or only the figures of its runs."""
    full = ["tiny", "--methods", "pflego", "--scale", "full", "--out", "here"]
    assert reproduce(monkeypatch, *full) == 0
    before = (tmp_path / "here" / "table.md").read_bytes()
    capsys.readouterr()
    for message in ("has the table of tiny at --scale full", "are of --scale full"):
        assert reproduce(monkeypatch, "tiny", "--methods", "pflego", "--only-table", "--out", "here") == 2
        assert message in " ".join(capsys.readouterr().err.split())
        (tmp_path / "here" / "table.json").unlink(missing_ok=True)
    assert (tmp_path / "here" / "table.md").read_bytes() == before
    assert reproduce(monkeypatch, *full, "--only-table") == 0
    assert (tmp_path / "here" / "table.md").read_bytes() == before


def test_methods_with_different_label_spaces_are_marked(monkeypatch, tmp_path):
    assert reproduce(monkeypatch, "mixed", "--out", "here") == 0
    table = (tmp_path / "here" / "table.md").read_text()
    assert "| pflego | own classes |" in table
    assert "| fedavg | all classes |" in table
    assert "as is, restricted" in table
