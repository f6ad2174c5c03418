"""What the server does with answers of a site that are not as they should be: the campaign `answers`, case by case."""

import json
import math
from dataclasses import replace

import pytest
import torch

import reference as ref
from attack.answers import _packed
from coterie.clients.sites import counts_in
from coterie.clients.wire import decode, shown
from coterie.errors import UserError
from coterie.models.logreg import LogReg
from coterie.training import Training
from sites.direct import Direct, ready
from sites.test_equality import recipe


def answering(kind, change, tmp_path, method="fedavg", joins=False):
    """Play a run in which client-1 answers with a changed head or trees. It may come after the first round."""

    def fault(name, request, answer):
        asked, answered = decode(request), answer(request)
        if joins and asked.kind == "update" and asked.head["round"]["index"] == 2:
            transport.away = set()
        message = decode(answered)
        if name == "client-1" and message.kind == kind:
            return _packed(*change(json.loads(json.dumps(message.head)), dict(message.trees)))
        return answered

    transport = Direct(ref.federation((5, 3, 8), new=0), tmp_path / "sites", fault)
    transport.away = {"client-1"} if joins else set()
    names = [name for name in transport.own if name not in transport.away]
    settings = recipe(method, rounds=3, eval_every=1, clients_per_round=None)
    if kind == "measured":
        settings = replace(settings, model=LogReg(), method=replace(settings.method, gamma="1/trace"))
    made = ready(settings, transport, names, quorum=0.5)
    return Training(made.asking.recipe, made.prepared, tmp_path / "run").play()


FACTS = {
    "examples": ("splits", {"train": 10**30, "test": 1}),
    "no number of examples": ("splits", {"train": math.inf, "test": 1}),
    "no splits": ("splits", [1]),
    "labels of two types": ("labels", [0, None]),
    "labels that are lists": ("labels", [0, [1]]),
    "labels that cannot be written": ("labels", ["\ud800"]),
    "tokens": ("inputs", {"shape": [4], "tokens": [5]}),
    "shape": ("inputs", {"shape": [-4], "tokens": None}),
}


@pytest.mark.parametrize("joins", [False, True])
@pytest.mark.parametrize("name", FACTS)
def test_facts_that_cannot_be_used(name, joins, tmp_path):
    """Before the run they are an error. A run that has begun goes on without the site."""
    key, value = FACTS[name]

    def change(head, trees):
        return {**head, key: value}, trees

    if joins:
        run = answering("facts", change, tmp_path, joins=True)
        assert [record.cohort for record in run.history] == [("client-0", "client-2")] * 3
    else:
        with pytest.raises(UserError, match="client-1 has sent facts that cannot be used"):
            answering("facts", change, tmp_path)


def test_a_site_without_labels_does_not_join_a_classification(tmp_path):
    def change(head, trees):
        return {**head, "labels": None, "targets": {"mean": 0.0, "squares": 1.0}}, trees

    run = answering("facts", change, tmp_path, joins=True)
    assert run.history[-1].cohort == ("client-0", "client-2")


@pytest.mark.parametrize("kind", ["accepted", "facts"])
def test_an_answer_of_another_kind_is_no_consent(kind, tmp_path):
    other = {"kind": "junk" if kind == "accepted" else kind, "version": 1}
    run = answering("accepted", lambda head, trees: (other, {}), tmp_path)
    assert run.ids == ("client-0", "client-2")


@pytest.mark.parametrize("numbers", [None, [], {"step": -1}, {"step": math.nan}, {"step": "x"}, {"step": 0}, {}])
def test_measured_numbers_that_cannot_be_used(numbers, tmp_path):
    with pytest.raises(UserError, match=r"the numbers that (client-1|the sites) ha(s|ve) measured cannot be used"):
        answering("measured", lambda head, trees: ({**head, "numbers": numbers}, trees), tmp_path, "flix")


def test_a_long_reason_is_cut_and_visible(tmp_path):
    def change(head, trees):
        return {"kind": "failed", "why": "\x1b[2J\ud800" + "A" * 1_000_000, "version": 1}, {}

    run = answering("reply", change, tmp_path)
    assert run.history[0].refused == {"client-1": "?[2J?" + "A" * 295 + "..."}
    assert (tmp_path / "run" / "rounds.jsonl").stat().st_size < 20_000
    assert shown("a\nb") == "a?b"


@pytest.mark.parametrize("part", ["examples", "right", "restricted", "loss"])
@pytest.mark.parametrize("value", [10**400, 1e308, -1e308, math.nan, True, "1"])
def test_counts_that_no_site_has_are_missing(part, value):
    honest = {"examples": 6, "right": 3, "restricted": 4, "loss": 2.5}
    assert counts_in({"test": honest}, "test") == honest
    assert counts_in({"test": {**honest, part: value}}, "test") is None
    assert counts_in({"test": {**honest, "examples": 1e-308}}, "test") is None


@pytest.mark.parametrize("stored", [10**400, -1, True, None])
def test_a_state_of_any_size_does_not_end_the_run(stored, tmp_path):
    run = answering("scores", lambda head, trees: ({**head, "stored_bytes": stored}, trees), tmp_path)
    assert math.isfinite(run.summary.existing.as_is.mean)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_numbers_that_cannot_be_added_up_are_refused(dtype, tmp_path):
    def change(head, trees):
        return head, {**trees, "numbers": {name: value.to(dtype) for name, value in trees["numbers"].items()}}

    run = answering("reply", change, tmp_path)
    assert run.history[0].refused == {"client-1": f"the number 'loss' has type {dtype}, which cannot be added up"}
