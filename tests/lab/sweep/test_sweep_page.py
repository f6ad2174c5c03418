"""The page of a sweep: what it shows of which trial."""

from dataclasses import replace

from coterie.lab.sweep.outcome import Outcome
from coterie.lab.sweep.page import sweep_page
from coterie.lab.sweep.trial import Trial
from coterie.measure.cost import Cost
from coterie.measure.protocols import Existing, Figures, New, Statistics
from coterie.measure.summary import Summary
from report.parsed_page import Parsed


def trial(number, state, rate, score, curve, remark=""):
    return Trial(number, state, {"method.eta": rate, "model.name": "<b>"}, score, curve, remark)


def existing(mean):
    own = Statistics(mean=mean, stderr=0.0123)
    return Existing(own, own)


SUMMARY = Summary(
    method="fedavg",
    engine="loop",
    seed=0,
    rounds=4,
    score="accuracy",
    protocol="",
    existing=existing(0.6543),
    new=New(),
    validation=Figures(existing(0.75), New()),
    train_loss=0.5,
    cost=Cost(),
)
FOUND = Outcome(
    data="digits",
    method="fedavg",
    seed=0,
    rounds=4,
    search="grid",
    protocol="as_is",
    score="accuracy",
    space={"method": {"eta": [0.001, 0.1, 1.0]}, "model": {"name": ["<b>"]}},
    planned=4,
    trials=[
        trial(0, "complete", 0.001, 0.5, {2: 0.4, 4: 0.5}),
        trial(1, "pruned", 0.1, None, {2: 0.9}),
        trial(2, "complete", 0.1, 0.75, {2: 0.5, 4: 0.75}),
        trial(3, "diverged", 1.0, None, {}, "round 1"),
    ],
    summary=SUMMARY,
)


def test_the_page_shows_results_of_complete_trials_only():
    page = Parsed(sweep_page("mine", FOUND, {"method": {"eta": 0.1}}))
    rows = {row[0]: row for row in page.rows if row[0].isdigit()}
    assert rows == {
        "0": ["0", "0.001", "<b>", "50.00"],
        "1": ["1", "0.1", "<b>", "pruned after round 2"],
        "2": ["2", "0.1", "<b>", "75.00"],
        "3": ["3", "1", "<b>", "diverged: round 1"],
    }
    assert [row[0] for row in page.rows if row[0].isdigit()] == ["2", "0", "1", "3"]
    assert "Best: trial 2\nmethod.eta 0.1 · model.name <b>" in page.text
    assert "90.00" not in page.text  # how far a pruned trial had come is no score
    assert page.row("existing, as is (used to choose)") == {"validation": "75.00 ± 1.23", "test": "65.43 ± 1.23"}
    assert page.cards[0].split()[:5] == ["Best", "on", "validation", "existing,", "as"]
    assert "75.0" in page.cards[0]
    assert "65.4" in page.cards[1]
    assert "shown for the best trial only" in page.cards[1]
    assert "1 pruned, 1 diverged" in page.cards[3]


def test_the_slices_mark_what_was_tried_without_a_height():
    figure = Parsed(sweep_page("mine", FOUND, None)).figures["slice-0"]
    others, complete, best = figure["data"]
    bottom = figure["layout"]["yaxis"]["range"][0]
    assert figure["layout"]["xaxis"]["type"] == "log"
    assert (complete["x"], complete["y"]) == ([0.001], [0.5])
    assert (best["x"], best["y"]) == ([0.1], [0.75])
    assert others["x"] == [0.1, 1.0]
    assert len(set(others["y"])) == 1
    assert bottom < others["y"][0] < 0.5
    words = Parsed(sweep_page("mine", FOUND, None)).figures["slice-1"]
    assert words["layout"]["xaxis"]["type"] == "category"


def test_the_curves_tell_the_best_from_the_others():
    drawn = Parsed(sweep_page("mine", FOUND, None)).figures["curves"]["data"]
    assert [(trace["name"], trace["x"], trace["y"]) for trace in drawn] == [
        ("pruned", [2], [0.9]),
        ("complete", [2, 4], [0.4, 0.5]),
        ("best", [2, 4], [0.5, 0.75]),
    ]


def test_a_page_without_a_complete_trial():
    found = replace(FOUND, summary=None, trials=FOUND.trials[3:])
    page = Parsed(sweep_page("mine", found, None))
    assert "There is nothing to show" in page.text
    assert "Best: trial" not in page.text
    assert page.figures == {}
