"""Curves of runs: what is kept of them, when they reach a target, and the figures that show them."""

import json
import shutil
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from commands import coterie, in_folder
from coterie import registry
from coterie.lab.papers.campaign import Campaign
from coterie.lab.papers.comparison import Row, accuracy, to_target, with_targets
from coterie.lab.papers.curve import MOST, Curve, Point, mean_curve
from coterie.lab.papers.feddecay import Beta, Tuned
from coterie.lab.papers.figure import curve_panels, without_curve
from coterie.lab.papers.measured import Measured, Percentage
from coterie.lab.papers.pflego import Table2
from coterie.lab.papers.users import Over, Picked
from coterie.measure.cost import Cost
from coterie.measure.protocols import Existing, New, Statistics
from coterie.measure.record import Evaluated, Record
from coterie.report.units import DASH


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    monkeypatch.setitem(registry.BUILT_IN["experiment"], "tiny", "tiny:Tiny")


def record(index, accuracy=None, loss=None, train=None):
    train = None if train is None else Statistics(mean=train)
    found = None
    if accuracy is not None:
        found = Evaluated(Existing(as_is=Statistics(mean=accuracy)), New(), loss, train_score=train)
    return Record(index, ("a",), 0.5, Cost(bytes_down=10_000 * index, bytes_up=1), found)


def points(accuracies, every=10):
    return Curve(Point(every * n, value, 1 / n, 100 * n) for n, value in enumerate(accuracies, 1))


def row(method, curves, data="mnist"):
    ends = [Percentage(curve[-1].accuracy, 1.0) if curve else Percentage(50.0, 1.0) for curve in curves]
    runs = [Measured(end, end, end, None, 0.1, 1.0, 1.0, curve=curve) for end, curve in zip(ends, curves, strict=True)]
    return Row({"data": data, "method": method}, "as_is", None, None, runs, "", seeds=range(len(runs)))


def test_a_curve_has_the_evaluated_rounds_and_the_bytes_of_all_rounds_before_them():
    curve = Curve.of([record(1), record(2, 0.51237, 1.234567), record(3), record(4, 0.75, 0.00123456)], "as_is")
    assert curve == (Point(2, 51.24, 1.235, 30_000), Point(4, 75.0, 0.001235, 100_000))
    assert Curve.of([record(1)], "as_is") is None


def test_a_curve_of_many_evaluations_is_small_and_keeps_its_last_point():
    curve = Curve.of([record(n, 0.123456 + n / 1e5, 1.234567 / n) for n in range(1, 5001)], "as_is")
    assert len(curve) <= MOST + 1
    assert (curve[0].round, curve[-1].round) == (1, 5000)
    assert len(json.dumps(curve.as_dict())) < 8000
    usual = Curve.of([record(n, 0.123456 + n / 1e5, 1.234567 / n) for n in range(1, 51)], "as_is")
    assert len(json.dumps(usual.as_dict())) < 2000


def test_the_figure_of_omniglot_also_has_the_training_accuracy():
    curve = Curve.of([record(1, 0.5, 2.0, 0.625), record(2, 0.75, 1.0, 0.875)], "as_is")
    older = {name: values for name, values in curve.as_dict().items() if name != "train_accuracy"}
    rows = [row("pflego", [curve]), row("fedavg", [Curve.from_dict(older)])]
    ((_, _, training),) = Table2().figure(rows)
    assert training.axis == "training accuracy (%)"
    assert [list(line.y) for line in training.lines] == [[62.5, 87.5], [None, None]]
    assert [panel.axis for panel in curve_panels(rows, ("method",))[0]] == ["test accuracy (%)", "training loss"]


def test_a_curve_is_read_as_it_was_written():
    curve = Curve((Point(2, 51.24, None, 300), Point(4, None, 0.5, 1000)))
    assert Curve.from_dict(json.loads(json.dumps(curve.as_dict()))) == curve


def test_curves_of_several_seeds_are_averaged_where_all_have_a_point():
    found = mean_curve([points([10, 20, 30]), points([30, 40])])
    assert found == (Point(10, 20, 1, 100), Point(20, 30, 0.5, 200))


def test_the_target_is_what_all_methods_reach_on_the_same_data():
    rows = with_targets(
        [
            row("pflego", [points([70, 90, 95])]),
            row("fedavg", [points([60, 70, 80.17])]),
            row("old", [None]),
            row("pflego", [points([40, 50])], data="emnist"),
        ],
        None,
    )
    assert [each.target for each in rows] == [80.1, 80.1, None, 50.0]
    assert to_target(rows[0]) == {"target": "80.1", "rounds to target": "20", "bytes to target": "200 B"}
    assert to_target(rows[1])["rounds to target"] == "30"
    assert set(to_target(rows[2]).values()) == {DASH}
    assert "Rounds and bytes to target" in " ".join(accuracy(rows).notes)


def test_a_given_target_need_not_be_reached_by_all_seeds():
    both, one = with_targets(
        [row("a", [points([70, 90]), points([90])]), row("b", [points([70, 90]), points([80])])], 85
    )
    assert to_target(both)["rounds to target"] == "15"  # 20 and 10
    assert to_target(one)["rounds to target"] == "not reached"
    assert one.as_dict()["rounds_to_target"] is None


def test_old_tables_have_no_new_columns():
    rows = with_targets([row("a", [None])], None)
    assert "target" not in accuracy(rows).headings
    assert curve_panels(rows, ("method",)) == []
    assert without_curve(rows) == []


def test_there_is_a_pair_of_panels_for_each_data_set_and_a_method_looks_the_same_in_all():
    rows = [
        row("a", [points([1, 2])]),
        row("b", [points([3, 4])]),
        row("b", [points([5, 6])], data="emnist"),
        row("c", [None], data="emnist"),
    ]
    first, second = curve_panels(rows, ("method",))
    assert [panel.title for panel in first + second] == ["mnist", "mnist", "emnist", "emnist"]
    assert [panel.axis for panel in first] == ["test accuracy (%)", "training loss"]
    assert [panel.logarithmic for panel in first] == [False, True]
    assert [(line.name, list(line.x), list(line.y)) for line in first[0].lines] == [
        ("a", [10, 20], [1, 2]),
        ("b", [10, 20], [3, 4]),
    ]
    assert [line.name for line in second[0].lines] == ["b"]
    assert first[0].lines[1].color == second[0].lines[0].color != first[0].lines[0].color
    assert without_curve(rows) == ["Not in the figure, as they have no curve or one of a single point: emnist c."]


def test_a_single_evaluation_is_not_a_curve():
    rows = [row("a", [points([1])]), row("b", [points([1, 2])])]
    ((accuracies, _),) = curve_panels(rows, ("method",))
    assert [line.name for line in accuracies.lines] == ["b"]
    assert without_curve(rows) == ["Not in the figure, as they have no curve or one of a single point: mnist a."]
    assert curve_panels(rows[:1], ("method",)) == []
    assert without_curve(rows[:1]) == []


def test_all_methods_of_feddecays_tables_are_in_one_panel():
    """Settings of FedDecay that other methods do not have are told in the name of the line, and do not part them."""
    chosen = Tuned().choose("feddecay-tuned", {"data": ["femnist"]})
    rows = [replace(row("", [points([1, 2])]), at=variant.at) for variant in chosen]
    ((accuracies, _),) = curve_panels(rows, Tuned.along)
    assert len(accuracies.lines) == len(chosen)
    assert {"fedavg", "feddecay, decay = exponential, counts = epoch"} <= {line.name for line in accuracies.lines}


def test_the_figure_of_beta_starts_and_ends_alike_for_both_decays_on_each_data_set():
    def of(decay, beta, mean, data="pubmed"):
        over = Over(mean, 0, 0)
        picked = Picked(1, mean, over, over, over, over, 1, 1)
        found = Measured(None, None, None, None, None, 1.0, 1.0, picked=picked)
        at = {"data": data, "decay": decay, "beta": beta, "method": "feddecay"}
        return Row(at, "adapted", None, None, [found], "", seeds=[0])

    rows = [
        of("exponential", "0.0", 1),
        of("exponential", "0.5", 2),
        of("exponential", "1.0", 3),
        of("linear", "0.5", 4),
        of("exponential", "0.0", 7, "sst2"),
    ]
    (existing, new), other = Beta().figure(rows)
    assert [panel.title.partition(",")[0] for panel in (existing, new, *other)] == ["pubmed"] * 2 + ["sst2"] * 2
    for panel in (existing, new):
        drawn = {line.name: list(zip(line.x, line.y, strict=True)) for line in panel.lines}
        assert drawn == {"exponential": [(0, 1), (0.5, 2), (1, 3)], "linear": [(0, 1), (0.5, 4), (1, 3)]}
    assert list(other[0].lines[0].y) == [7]


def campaign(out, *methods):
    return Campaign("tiny", {"method": list(methods)}, "small", 1, out)


def test_the_figure_needs_only_what_is_kept_and_says_what_has_no_curve(tmp_path, monkeypatch, capsys):
    begun = campaign(tmp_path / "runs", "pflego", "fedavg")
    for cell in begun.missing():
        begun.play(cell, begun.training(cell), lambda _: None, lambda: False)
    begun.report()
    kept = json.loads((tmp_path / "runs" / "runs.json").read_text())
    assert kept["digits-pflego"]["seeds"]["0"]["curve"]["round"] == [3, 4]
    del kept["digits-fedavg"]["seeds"]["0"]["curve"]  # as older versions stored it
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "runs.json").write_text(json.dumps(kept))
    with in_folder(tmp_path, monkeypatch):
        command = ["reproduce", "tiny", "--methods", "pflego,fedavg", "--only-table", "--out", "old"]
        assert coterie(monkeypatch, *command) == 0
        assert "old/figure.svg" in capsys.readouterr().out
        drawn = ET.parse(tmp_path / "old" / "figure.svg")
        shown = " ".join(each.text for each in drawn.iter("{http://www.w3.org/2000/svg}text"))
        assert "one of a single point: digits fedavg." in shown
        assert "pflego" in shown
        assert "one of a single point: digits fedavg." in (tmp_path / "old" / "table.md").read_text()
        assert coterie(monkeypatch, *command, "--target", "99.5") == 0
        assert "not reached" in (tmp_path / "old" / "table.md").read_text()
    shutil.rmtree(tmp_path / "old")


def test_a_laboratory_has_no_target(monkeypatch, tmp_path, capsys):
    with in_folder(tmp_path, monkeypatch):
        assert coterie(monkeypatch, "reproduce", "scafflix-convex", "--target", "90", "--only-table") == 2
    assert "scafflix-convex has no --target" in capsys.readouterr().err
