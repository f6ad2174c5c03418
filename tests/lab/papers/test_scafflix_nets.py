"""`coterie reproduce scafflix-nets`: what is compared with what, and what is made of it."""

from dataclasses import replace
from pathlib import Path

import pytest

from coterie.lab.papers.campaign import Campaign
from coterie.lab.papers.comparison import Row
from coterie.lab.papers.curve import Curve, Point
from coterie.lab.papers.measured import Measured, Percentage
from coterie.lab.papers.rates import best
from coterie.lab.papers.scafflix_nets import ABLATIONS, RATES, Nets, counted
from coterie.recipe import load

HERE = Path("nowhere")


def campaign(scale="small", **wanted):
    return Campaign("scafflix-nets", wanted, scale, 1, HERE)


def of(work, **at):
    return [row[0] for row in work.rows if all(row[0].at[axis] == value for axis, value in at.items())]


def test_femnist_only_where_it_is_asked_for():
    assert {cell.at["data"] for cell in of(campaign())} == {"mnist-writers", "fashion-mnist", "shakespeare"}
    assert {cell.at["data"] for cell in of(campaign(data=["femnist"]))} == {"femnist"}


@pytest.mark.parametrize("scale", ["small", "full"])
@pytest.mark.parametrize("data", RATES)
def test_equal_aggregations_and_equal_local_gradients(data, scale):
    """Of the four ways in which FLIX and Scafflix are compared; and all methods choose from as many rates."""
    work = campaign(scale, data=[data])
    T = of(work, method="fedavg")[0].recipe.run.rounds
    assert (load(f"scafflix/{data}")["run"]["rounds"] == T) is (scale == "full")
    spent = {}
    for cell in of(work, part="methods"):
        method = cell.recipe.method
        if cell.at["rounds"] == "0":
            assert method.alpha == 0
            continue
        steps = getattr(method, "tau", None) or 1 / method.p
        place = (cell.at["method"], cell.at["steps"] == "1", cell.at["rounds"] == "T")
        spent.setdefault(place, []).append((cell.recipe.run.rounds, round(steps * cell.recipe.run.rounds)))
    n = spent["scafflix", False, True][0][1] // T
    assert n == {"fashion-mnist": 3}.get(data, 5)
    rates = len(RATES[data])
    assert spent == {
        ("fedavg", False, True): [(T, n * T)] * rates,
        ("flix", True, True): [(T, T)] * rates,
        ("flix", False, True): [(T, n * T)] * rates,
        ("flix", True, False): [(n * T, n * T)] * rates,
        ("scaffnew", False, True): [(T, n * T)] * rates,
        ("scafflix", False, True): [(T, n * T)] * rates,
    }


@pytest.mark.parametrize("data", RATES)
def test_a_rate_is_what_moves_a_clients_model_and_all_else_is_alike(data):
    work = campaign(data=[data])
    for cell in of(work, part="methods"):
        method, rate = cell.recipe.method, float(cell.at["rate"])
        if cell.at["method"] == "fedavg":
            assert method.eta == rate
        elif cell.at["rounds"] != "0":
            alpha = getattr(method, "alpha", 1.0)
            moved = method.gamma * (alpha**2 if cell.at["method"] == "flix" else 1)  # (steps 4 of FLIX and Scafflix)
            assert moved == pytest.approx(rate)
    ours, theirs = (of(work, part="methods", method=name)[0].recipe for name in ("scafflix", "flix"))
    for field in ("solver", "rate", "tolerance", "epochs", "batch", "start"):
        assert getattr(ours.method, f"optimum_{field}") == getattr(theirs.method, f"optimum_{field}")
    assert len({cell.recipe.method.batch_size for cell in of(work)}) == 1
    assert len({str(cell.recipe.as_dict()["model"]) for cell in of(work)}) == 1
    assert all(cell.recipe.eval.adapt_steps == 0 and cell.recipe.partition.validation for cell in of(work))


def test_what_is_published_is_of_the_papers_own_settings():
    published = {
        (cell.at["data"], cell.at["method"]): cell.published.mean
        for cell in of(campaign(data=["shakespeare", "fashion-mnist", "femnist"]))
        if cell.published
    }
    assert published == {
        ("femnist", "fedavg"): 85.25,
        ("femnist", "flix"): 87.18,
        ("femnist", "scaffnew"): 87.73,
        ("femnist", "scafflix"): 89.43,
        ("shakespeare", "fedavg"): 38.67,
        ("shakespeare", "flix"): 43.40,
        ("shakespeare", "scaffnew"): 51.66,
        ("shakespeare", "scafflix"): 54.21,
        ("fashion-mnist", "scafflix"): 89.62,
    }
    flix = of(campaign(data=["shakespeare"]), part="methods", method="flix")
    assert {(cell.at["steps"], cell.at["rounds"]) for cell in flix if cell.published} == {("1", "T")}


def test_the_ablations():
    work = campaign(data=["mnist-writers"])
    assert [cell.recipe.method.alpha for cell in of(work, part="alpha", method="scafflix")] == [0.1, 0.3, 0.5, 0.7, 0.9]
    assert [cell.recipe.run.clients_per_round for cell in of(work, part="clients")] == [1, 5, 10, 20]
    coins = [(cell.recipe.method.p, cell.recipe.run.rounds / 60) for cell in of(work, part="p")]
    assert coins == [(0.1, 1), (0.2, 1), (0.2, 2), (0.5, 1), (0.5, 5)]
    scafflix = [cell for part in ABLATIONS["mnist-writers"] for cell in of(work, part=part, method="scafflix")]
    assert all(cell.recipe.method.gamma == 0.1 for cell in scafflix)


@pytest.mark.parametrize("data", ["femnist", "shakespeare"])
def test_flix_at_each_alpha(data):
    """As in Figures 6 and 7, with one local step, and also with as many as Scafflix takes on average."""
    work, own = campaign("full", data=[data]), load(f"scafflix/{data}")["method"]
    scafflix, flix = ([cell.recipe for cell in of(work, part="alpha", method=name)] for name in ("scafflix", "flix"))
    assert [(each.method.alpha, each.method.tau) for each in flix] == [
        (alpha, steps) for alpha in (0.1, 0.3, 0.5, 0.7, 0.9) for steps in (1, 5)
    ]
    for each in flix:
        (mine,) = [other for other in scafflix if other.method.alpha == each.method.alpha]
        assert each.method.gamma * each.method.alpha**2 == pytest.approx(mine.method.gamma) == own["gamma"]
        assert replace(each, method=mine.method) == mine
        for field in ("solver", "rate", "tolerance", "epochs", "batch", "start"):
            assert getattr(each.method, f"optimum_{field}") == getattr(mine.method, f"optimum_{field}")


def test_each_alpha_has_its_own_panels():
    curve = Curve([Point(1, 50.0, 2.0, 10), Point(2, 60.0, 1.0, 20)])
    rows = [
        replace(found, at={**found.at, "part": part, "setting": setting}, runs=[found.runs[0]._replace(curve=curve)])
        for part, setting in (("methods", "alpha=0.5"), ("alpha", "alpha=0.1"), ("alpha", "alpha=0.9"))
        for found in (row("scafflix", "5", "T", "0.1", 80.0, 80.0), row("flix", "1", "T", "0.1", 80.0, 80.0))
    ]
    panels = [pair[0] for pair in Nets().figure(rows)]
    assert [panel.title for panel in panels] == ["d, methods", "d, alpha=0.1", "d, alpha=0.9"]
    assert [[line.name for line in panel.lines] for panel in panels[1:]] == [
        ["scafflix, steps = 5", "flix, steps = 1"]
    ] * 2


@pytest.mark.parametrize("data", ["mnist-writers", "femnist"])
def test_figure_8(data):
    """Full batches, α on an exponential scale, and the epochs of local optima; all else is as in the recipe."""
    work, own = Campaign("scafflix-figure8", {"data": [data]}, "full", 1, HERE), load(f"scafflix/{data}")["method"]
    full, exponential, optima = (of(work, part=part) for part in ("full-batch", "exponential", "optima"))
    assert [cell.recipe.method.alpha for cell in full] == [0.1, 0.3, 0.5, 0.7, 0.9]
    assert {cell.recipe.method.batch_size for cell in full} == {0}
    assert [cell.recipe.method.alpha for cell in exponential] == [0.0001, 0.001, 0.01, 0.1, 1]
    assert {cell.recipe.method.batch_size for cell in (*exponential, *optima)} == {own["batch_size"]} == {20}
    assert [cell.recipe.method.optimum_epochs for cell in optima] == [1, 5, 20, 50, 100]
    assert {cell.recipe.method.optimum_epochs for cell in (*full, *exponential)} == {own["optimum_epochs"]}
    assert len(work.rows) == 15
    assert {(cell.recipe.method.gamma, cell.recipe.method.p) for cell in of(work)} == {(own["gamma"], own["p"])}


def test_figure_8_without_files_of_the_users_own():
    work = Campaign("scafflix-figure8", {}, "small", 1, HERE)
    assert {cell.at["data"] for cell in of(work)} == {"mnist-writers"}
    assert all(cell.published is None for cell in of(work))


def row(method, steps, rounds, rate, validation, test, published=None):
    at = {"data": "d", "part": "methods", "method": method, "setting": "alpha=0.5", "steps": steps}
    figure = Percentage(test, 0.3)
    run = Measured(figure, figure, figure, Percentage(validation, 0.1), 1.0, 1.0, 1.0)
    runs, state = ([], "not run") if validation is None else ([run], "")
    return Row({**at, "rounds": rounds, "rate": rate}, "as_is", published, None, runs, state)


def test_the_rate_is_chosen_by_validation_and_not_by_test():
    rows = [row("flix", "1", "T", "0.1", 80.0, 95.0), row("flix", "1", "T", "0.3", 90.0, 70.0)]
    assert [each.at["rate"] for each in best(rows)] == ["0.3"]
    unfinished = [row("flix", "1", "T", "0.1", None, 0.0), row("flix", "1", "T", "0.3", 90.0, 70.0)]
    assert [each.at["rate"] for each in best(unfinished)] == ["0.3"]
    assert counted(unfinished).notes[1:] == ["Some rates are not measured yet: d methods flix alpha=0.5 1 T."]
    ended = [replace(unfinished[0], diverged=True), unfinished[1]]
    assert "so another rate may be better: d methods flix alpha=0.5 1 T." in counted(ended).notes[-1]
    assert len(best([*rows, row("flix", "1", "5T", "0.1", 1.0, 1.0)])) == 2
    assert "so another rate may be better: d methods flix alpha=0.5 1 T." in counted(rows).notes[-1]
    middle = [*rows, row("flix", "1", "T", "1", 50.0, 99.0)]
    assert "of them" not in " ".join(counted(middle).notes[1:])


def test_the_table_counts_and_says_what_holds():
    table = counted(
        [
            row("flix", "0", "0", "0", 60.0, 60.0),
            row("flix", "1", "T", "0.1", 80.0, 80.0, Percentage(87.18, 0.0)),
            row("flix", "5", "T", "0.1", 80.0, 84.5),
            row("flix", "1", "5T", "0.1", 80.0, 85.0),
            row("scafflix", "5", "T", "0.1", 80.0, 84.0),
        ]
    )
    assert [line[4:6] for line in table.lines] == [["0", "0"], ["T", "T"], ["T", "5T"], ["5T", "5T"], ["T", "5T"]]
    assert table.lines[1][6:] == ["0.1", "80.00 ± 0.10", "80.00 ± 0.30", "87.18"]
    assert table.notes[-1] == (
        "d, Scafflix minus the others in percentage points: the local optima alone +24.00 ± 0.42; "
        "FLIX at equal aggregations +4.00 ± 0.42; FLIX at equal aggregations and gradients -0.50 ± 0.42; "
        "FLIX at equal local gradients -1.00 ± 0.42."
    )
    assert len(Nets().table([row("flix", "1", "T", "0.1", None, 0.0)]).notes) == 1
