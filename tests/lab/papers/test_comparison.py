"""The arithmetic of the tables, by hand."""

import json
from dataclasses import replace

import pytest

from coterie.lab.papers.comparison import MIXED, Row, accuracy, cost, interval_notes
from coterie.lab.papers.measured import Measured, Percentage, figures_of, over_seeds
from coterie.storage.origin import RUN, Origin
from coterie.storage.seal import sealed_json, sealed_line


def measured(mean=90.0, stderr=1.0, seconds=1.0, flops=1.0):
    figure = Percentage(mean, stderr)
    return Measured(figure, figure, figure, None, 0.5, seconds, flops)


def row(published=None, runs=(), state="", method="pflego", seconds=None):
    return Row({"method": method}, "participants", published, seconds, list(runs), state)


def record(mean, std, cohort, seconds, evaluated=True):
    figures = {"mean": mean, "std": std, "stderr": std / len(cohort) ** 0.5}
    whole = {"existing": {"participants": figures, "as_is": {"mean": 0.25, "std": 0.5, "stderr": mean / 10}}}
    return {
        "round": len(cohort),
        "cohort": cohort,
        "cost": {"seconds": seconds, "flops": 4},
        **({"eval": whole} if evaluated else {}),
    }


@pytest.fixture
def folder(tmp_path):
    records = [
        record(0.1, 0.9, ["a"], 9.0),
        record(0.1, 0.9, ["b"], 1.0, evaluated=False),
        record(0.8, 0.2, ["a", "b", "c"], 2.0),
        record(0.9, 0.4, ["b", "c", "d"], 4.0),
    ]
    summary = {
        **{"method": "pflego", "engine": "loop", "seed": 0, "rounds": 4, "protocol": ""},
        "existing": {"as_is": {"mean": 0.5, "stderr": 0.02}, "adapted": {"mean": 0.75, "stderr": 0.01}},
        "validation": {"existing": {"adapted": {"mean": 0.625, "stderr": 0.03}}},
        "train_loss": 0.375,
        "cost": {"flops": 16},
    }
    origin = Origin({"run": {"rounds": 4, "eval_last": 2}}, {"federation": "f00d"})
    origin.write(tmp_path)
    last = origin.run
    with (tmp_path / "rounds.jsonl").open("wb") as log:
        for each in records:
            line, last = sealed_line(each, last)
            log.write(line + b"\n")
    (tmp_path / "summary.json").write_bytes(sealed_json({**summary, RUN: origin.run}))
    return tmp_path


def test_what_a_run_folder_says(folder):
    found = figures_of(folder, "participants")
    assert found.figure.mean == pytest.approx(85)
    assert found.figure.stderr == pytest.approx(100 * 0.3 / 2)  # the mean std, over the root of four different clients
    assert found.as_is == Percentage(50, 2)
    assert found.adapted == Percentage(75, 1)
    assert found.validation == Percentage(62.5, 3)
    assert found.train_loss == 0.375
    assert found.seconds == 2  # the median of 1, 2 and 4
    assert found.flops == 4


def test_under_another_protocol_all_clients_count_in_each_round(folder):
    figure = figures_of(folder, "as_is").figure
    assert figure.mean == pytest.approx(25)
    assert figure.stderr == pytest.approx(8.5)


def test_the_difference_is_in_units_of_both_errors_together():
    assert row(Percentage(85, 4)).difference(Percentage(95, 3)) == pytest.approx(2)
    assert row(Percentage(85, 4)).difference(Percentage(75, 3)) == pytest.approx(-2)
    assert row(None).difference(Percentage(75, 3)) is None
    assert row(Percentage(85, 4)).difference(None) is None
    assert row(Percentage(85, 0)).difference(Percentage(85, 0)) is None


def test_several_seeds():
    both = over_seeds([measured(90, 3, seconds=1, flops=2), measured(94, 4, seconds=2, flops=4)])
    assert both.figure == both.as_is == Percentage(92, 2.5)  # the root of 9 + 16, over two
    assert both.spread == pytest.approx(8**0.5)  # of 90 and 94, around 92, over n - 1
    assert both.seconds == 1.5
    assert both.flops == 3
    assert over_seeds([measured()]).spread is None
    assert over_seeds([]) is None
    lacking = measured()._replace(figure=None, validation=Percentage(1, 1))
    assert over_seeds([lacking]).figure is None


def test_a_line_of_accuracies():
    run = measured(95, 3)._replace(as_is=Percentage(75, 3), adapted=Percentage(90, 3))
    table = accuracy([row(Percentage(85, 4), [run]), row(state="not run", method="fedavg")])
    none = "–"  # noqa: RUF001
    assert [list(each) for each in zip(table.headings, *table.lines, strict=True)] == [
        ["method", "pflego", "fedavg"],
        ["published", "85.00 ± 4.00", none],
        ["measured", "95.00 ± 3.00 (+2.0)", "(not run)"],
        ["as is", "75.00 ± 3.00 (-2.0)", none],
        ["adapted", "90.00 ± 3.00 (+1.0)", none],
        ["loss", "0.5000", none],
    ]


def test_seeds_that_are_missing_are_said():
    table = accuracy([row(Percentage(85, 4), [measured(95, 3), measured(93, 4)], "2 of 3 seeds; not run")])
    assert table.lines[0][1:4] == ["85.00 ± 4.00", "94.00 ± 2.50 (+1.9) (2 of 3 seeds; not run)", "1.41"]


def test_columns_that_nobody_fills_are_left_out():
    assert accuracy([row(runs=[measured()])]).headings == ["method", "measured", "as is", "adapted", "loss"]


def test_ratios_of_seconds_and_operations():
    rows = [
        row(runs=[measured(seconds=6, flops=5e9)], method="fedavg", seconds=16.553),
        row(runs=[measured(seconds=2, flops=1e9)], seconds=7.024),
    ]
    assert cost(rows, "pflego").lines == [
        ["fedavg", "16.6 s", "2.36", "6 s", "3.00", "5 G", "5.00"],
        ["pflego", "7.02 s", "1.00", "2 s", "1.00", "1 G", "1.00"],
    ]
    assert cost(rows[:1], "pflego").headings == ["method", "published", "measured", "FLOP a round"]


def test_markdown_and_json():
    each = row(Percentage(85, 4), [measured(95, 3)])
    lines = accuracy([each]).markdown().splitlines()
    assert lines[2].startswith("| method | published | measured |")
    assert lines[3].startswith("| --- | ---: | ---: |")
    assert lines[4].startswith("| pflego | 85.00 ± 4.00 | 95.00 ± 3.00 (+2.0) |")
    found = json.loads(json.dumps(each.as_dict()))
    assert found["published"] == {"mean": 85, "stderr": 4}
    assert found["measured"]["figure"] == {"mean": 95, "stderr": 3}
    assert found["measured"]["validation"] is None
    assert found["difference"] == {"figure": 2, "as_is": 2, "adapted": 2}
    assert found["state"] == "finished"


def test_rows_of_different_label_spaces_are_marked_and_compared_by_the_restricted_score():
    own = measured(60.3)._replace(restricted=60.3, adapted_restricted=61.0)
    every = measured(59.6)._replace(restricted=64.1, adapted_restricted=65.0)
    one, other = (
        replace(row(runs=[run], method=name), labels=labels)
        for run, name, labels in ((own, "pflego", "local"), (every, "ditto", "global"))
    )
    mixed = accuracy([one, other])
    shown = dict(zip(mixed.headings, zip(*mixed.lines, strict=True), strict=True))
    assert shown["chooses among"] == ("own classes", "all classes")
    assert shown["as is, restricted"] == ("60.30", "64.10")
    assert shown["adapted, restricted"] == ("61.00", "65.00")
    assert MIXED in mixed.notes
    alike = accuracy([one, one])
    assert not {"chooses among", "as is, restricted"} & set(alike.headings)
    assert MIXED not in alike.notes


def test_one_client_has_no_error_to_compare_by():
    assert str(Percentage(67.0, None)) == "67.00"
    assert row(Percentage(85, 5)).difference(Percentage(75, None)) == pytest.approx(-2)
    assert over_seeds([measured(90, None), measured(94, 1)]).figure == Percentage(92, None)


def test_the_note_on_intervals_counts_in_both_readings():
    """Differences of 2, 4 and 1.5 with errors 0.6 and 0.8, which are 1 in one reading, and 0.73 in the other."""
    rows = [row(Percentage(90 + more, 0.8), [measured(90.0, 0.6)]) for more in (2.0, -4.0, 1.5)]
    (note,) = interval_notes([*rows, row(None, [measured()]), row(Percentage(1, 1))])
    assert "1 of 3 measured figures differ by more than two" in note
    assert "by at most 4.0. If it is an interval of 95 %, 3 do, by at most 5.5." in note
    assert interval_notes([row(None, [measured()])]) == []
