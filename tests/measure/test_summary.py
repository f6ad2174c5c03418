"""What a summary says about clients that a mean would hide, about label spaces, and about rounds without clients."""

import logging

import numpy as np
import pytest
import torch

import coterie
import reference as ref
from coterie.measure.summary import ALL, OUTPUTS, OWN, Summary
from coterie.methods import PFLEGO, FedAvg


def clients(classes):
    """A client for each number of classes, with eight examples in each split."""
    rng = np.random.default_rng(0)
    return {
        f"c{n}-{own}": (rng.normal(size=(8, 4)), np.arange(8) % own, rng.normal(size=(8, 4)), np.arange(8) % own)
        for n, own in enumerate(classes)
    }


def federation(*classes, new=()):
    return coterie.Federation.from_arrays(clients(classes), new=list(new))


def test_clients_that_were_never_visited_have_figures_of_their_own():
    run = coterie.train(federation(*[2] * 6), method=PFLEGO(tau=3), rounds=3, clients_per_round=1)
    rows = {True: [], False: []}
    for row in run.clients():
        rows[row["visits"] > 0].append(row)
    assert len(rows[False]) >= 3
    for visited, part in ((True, run.summary.visited), (False, run.summary.never_visited)):
        assert part.as_is.clients == part.adapted.clients == len(rows[visited])
        assert part.as_is.mean == pytest.approx(np.mean([row["accuracy"] for row in rows[visited]]))
        assert part.adapted.mean == pytest.approx(np.mean([row["adapted"] for row in rows[visited]]))
    assert f"; {len(rows[False])} of 6 clients were never visited>" in repr(run)


def test_there_are_no_parts_where_every_client_was_visited():
    run = coterie.train(federation(2, 2, 3), rounds=2)
    assert (run.summary.visited, run.summary.never_visited, run.summary.several_classes) == (None, None, None)
    assert run.summary.remarks() == []


def test_a_refused_reply_is_no_visit():
    """A client with a huge input sends numbers that are not finite, so its state is still the initial one."""
    arrays = clients([2, 2])
    arrays["wild"] = (np.full((8, 4), 1e30), np.arange(8) % 2, np.zeros((2, 4)), [0, 1])
    run = coterie.train(coterie.Federation.from_arrays(arrays), method=FedAvg(eta=10.0), rounds=1, model="logreg")
    assert list(run.history[0].refused) == ["wild"]
    assert {row["client"]: row["visits"] for row in run.clients()} == {"c0-2": 1, "c1-2": 1, "wild": 0}
    assert run.summary.never_visited.as_is.clients == 1


def test_clients_with_one_class_are_named_and_left_out_of_a_second_mean():
    run = coterie.train(federation(1, 2, 2, 1, new=["c3-1"]), method=PFLEGO(tau=3), rounds=1)
    assert run.summary.one_class == ("c0-1", "c3-1")
    accuracy = {row["client"]: row["accuracy"] for row in run.clients()}
    assert accuracy["c0-1"] == accuracy["c3-1"] == 1
    several = run.summary.several_classes
    assert several.existing.as_is.mean == pytest.approx((accuracy["c1-2"] + accuracy["c2-2"]) / 2)
    assert several.existing.as_is.mean < run.summary.existing.as_is.mean
    assert several.new.before.clients is None
    (remark,) = run.summary.remarks()
    assert remark.startswith("2 of 4 clients have only one class (c0-1, c3-1), ")


def test_many_clients_with_one_class_are_only_counted():
    (remark,) = Summary.from_json(
        {
            **{"method": "pflego", "engine": "loop", "seed": 0, "rounds": 1, "protocol": ""},
            "existing": {"as_is": {"clients": 9}},
            "one_class": list("abcdef"),
        }
    ).remarks()
    assert remark.startswith("6 of 9 clients have only one class, ")


@pytest.mark.parametrize(
    ("method", "labels", "classes", "choices", "sentence"),
    [
        ("pflego", "auto", (2, 3), OWN, "chosen among the client's own classes, "),
        ("fedavg", "auto", (2, 3), ALL, "chosen among all classes (restricted_mean: the client's own classes only), "),
        ("fedavg", "local", (3, 3), OWN, "chosen among the client's own classes, "),
        (
            *("fedavg", "local", (2, 3), OUTPUTS),
            "chosen among all outputs of the shared head (restricted_mean: the client's own classes only), ",
        ),
    ],
)
def test_the_summary_says_what_a_client_chooses_among(method, labels, classes, choices, sentence):
    run = coterie.train(federation(*classes), method=method, rounds=1, settings={"model": {"labels": labels}})
    assert run.summary.choices == choices
    assert sentence in run.summary.protocol


def test_a_shared_head_over_local_labels_answers_outside_a_clients_classes():
    """Why `OUTPUTS` differs from `OWN`: a client with two classes can answer with any of six outputs."""
    run = coterie.train(federation(2, 6), method="fedavg", rounds=0, settings={"model": {"labels": "local"}})
    (row,) = [row for row in run.clients() if row["client"] == "c0-2"]
    assert row["accuracy"] < row["restricted"]


@pytest.mark.parametrize("method", ["pflego", "fedavg"])
def test_a_head_with_more_outputs_than_labels_is_said(method):
    """All clients have two classes and all labels are four, but this frozen head has seven outputs."""
    fed = federation(2, 2)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(fed.x.shape[1], 3), torch.nn.Linear(3, 7))
    net[2].requires_grad_(False)
    run = coterie.train(fed, model=net, head="2", method=method, rounds=0)
    assert run.summary.choices == "all outputs of the shared head"


def test_a_regression_has_no_label_space():
    rng = np.random.default_rng(0)
    fed = coterie.Federation.from_arrays({"a": (rng.normal(size=(8, 3)), rng.normal(size=8))}, regression=True)
    assert coterie.train(fed, rounds=1).summary.choices == ""


def test_rounds_without_clients_are_counted_and_warned_about_once(caplog):
    gone = {"schedule": [{"round": 2, "leave": [f"client-{n}" for n in range(4)]}]}
    with caplog.at_level(logging.WARNING, logger="coterie"):
        run = coterie.train(ref.federation(), population=gone, rounds=4)
    assert run.summary.void_rounds == 3
    assert run.summary.learned
    assert run.summary.remarks() == ["3 of 4 rounds had no clients"]
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning.startswith("round 2: no client took part")


@pytest.mark.parametrize(("rounds", "learned"), [(0, True), (3, False)])
def test_a_run_of_void_rounds_has_learned_nothing(rounds, learned):
    run = coterie.train(ref.federation(), population={"leave": 0.999999}, rounds=rounds)
    assert run.summary.learned is learned


def test_the_number_of_evaluations_behind_the_last_mean():
    for rounds, evaluations in ((3, 3), (12, 10)):
        run = coterie.train(ref.federation(), method=PFLEGO(tau=1), rounds=rounds, eval_every=1)
        assert run.summary.evaluations == evaluations


def test_each_evaluation_is_timed_and_logged(caplog):
    with caplog.at_level(logging.INFO, logger="coterie"):
        run = coterie.train(ref.federation(new=1), method=PFLEGO(tau=1), rounds=4, eval_every=2)
    lines = [line for record in caplog.records if " % as is" in (line := record.getMessage())]
    assert [line.partition(":")[0] for line in lines] == ["round 2", "round 4"]
    assert f"accuracy {100 * run.summary.existing.as_is.mean:.2f} % as is, " in lines[1]
    assert "(4 clients in " in lines[1]
    assert [record.cost.eval_seconds > 0 for record in run.history] == [False, True, False, True]
    assert run.summary.cost.eval_seconds == pytest.approx(sum(record.cost.eval_seconds for record in run.history))


@pytest.mark.parametrize(
    ("method", "numbers"),
    [("fedavg", 0), ("feddecay", 0), ("fedper", 2.5 * (200 + 1)), ("ditto", 200 * 64 + 200 + 5 * 201 + 0.25)],
)
def test_what_a_client_stores_beyond_the_shared_model(method, numbers):
    """Existing clients with 2 and 3 classes keep heads of 2 and 3 outputs; Ditto keeps a whole model and one flag."""
    rng = np.random.default_rng(0)
    members = {}
    for name, labels in (("a", [0, 1]), ("b", [2, 3, 4]), ("new", [0])):
        y = np.repeat(labels, 4)
        members[name] = (rng.normal(size=(len(y), 64)), y, rng.normal(size=(len(y), 64)), y)
    federation = coterie.Federation.from_arrays(members, new=["new"])
    summary = coterie.train(federation, method=method, rounds=1).summary
    assert summary.stored_bytes == 4 * numbers  # of float32
    assert Summary.from_json(summary.to_json()).stored_bytes == summary.stored_bytes
