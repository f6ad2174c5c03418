"""A whole run: its records and costs, clients that are refused, and how diverging ends."""

from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import reference as ref
from coterie import Federation, train
from coterie.core.method import Data, Prepares, Reply, Round, Task, Tree, Update, settings
from coterie.errors import DivergedError, UserError
from coterie.methods import PFLEGO, FedAvg
from coterie.prepare import prepare
from coterie.recipe import Recipe


def test_records_and_costs():
    run = train(ref.federation(new=1), method=PFLEGO(tau=5), rounds=7, clients_per_round=2, eval_every=3)
    assert [record.round for record in run.history] == list(range(1, 8))
    assert [record.round for record in run.history if record.eval] == [3, 6, 7]
    theta = (4 * 200 + 200) * 4
    for record in run.history:
        assert len(record.cohort) == 2
        assert "client-3" not in record.cohort  # the new user
        assert record.cost.bytes_down == 2 * theta
        numbers = 5 if record.round == 1 else 2  # the loss, whether steps were undone; at first the gauge of rates
        assert record.cost.bytes_up == 2 * (theta + 4 * numbers)
        assert record.cost.body_forwards == record.cost.body_backwards == 2
    for name, total in run.summary.cost.to_json().items():
        assert total == pytest.approx(sum(getattr(record.cost, name) for record in run.history))


def test_a_fedavg_client_passes_its_body_tau_times():
    run = train(ref.federation(), method=FedAvg(tau=5), rounds=2, clients_per_round=3)
    assert run.summary.cost.body_forwards == run.summary.cost.body_backwards == 2 * 3 * 5


def test_last10_is_the_mean_of_the_last_ten_evaluations():
    run = train(ref.federation(new=1), method=PFLEGO(tau=3), rounds=13, clients_per_round=2, eval_every=1)
    for key in ("existing.as_is", "existing.participants", "new.after"):
        means = [record.eval[key].mean for record in run.history[3:]]
        assert run.summary[key].last10_mean == pytest.approx(np.mean(means))
        assert run.summary[key].mean == means[-1]


@pytest.mark.parametrize(("last", "evaluated"), [(1, [4, 8, 10]), (3, [4, 8, 9, 10]), (99, list(range(1, 11)))])
def test_the_last_rounds_are_evaluated_whatever_their_number(last, evaluated):
    run = {"rounds": 10, "clients_per_round": 2, "eval_every": 4, "eval_last": last}
    rounds = prepare(Recipe.parse({"method": {"tau": 1}, "run": run}), ref.federation()).rounds
    assert [record.round for record in rounds.play() if record.eval] == evaluated


def test_participants_are_scored_before_aggregation():
    """Participants are scored with the models of their own, which differ from the average that follows."""
    run = train(ref.federation(sizes=(20, 3)), method=FedAvg(tau=30, eta=0.5), rounds=1, clients_per_round=2)
    existing = run.history[0].eval.existing
    assert existing.participants.mean != existing.as_is.mean


def test_no_rounds_give_the_initial_state():
    run = train(ref.federation(new=1), rounds=0)
    assert run.history == []
    assert run.summary.rounds == 0
    assert run.summary.existing.participants.mean is None
    assert run.summary.cost.bytes_up == 0
    assert 0 <= run.summary.existing.as_is.mean <= 1


def poisoned() -> Federation:
    """Client 1 has features so large that its gradient overflows."""
    federation = ref.federation()
    x = federation.x.clone()
    x[federation.splits["train"].row(1)] = 1e308
    return replace(federation, x=x)


def test_a_client_that_sends_nonsense_is_refused_and_changes_nothing():
    setup = ref.setup(PFLEGO(tau=3, server="sgd"), poisoned())
    shared, store = setup.task.shared_body(), ref.store(setup)
    rnd = ref.announced(setup, 3)
    played = ref.play(setup, shared, {}, store, [0, 1, 2], rnd)
    assert list(played.refused) == [1]
    without = ref.play(setup, shared, {}, ref.store(setup), [0, 2], rnd)
    ref.assert_same(played.shared, ref.arrays(without.shared), 0)
    ref.assert_same(store[1], ref.arrays(ref.store(setup)[1]), 0)


class Exploding(FedAvg):
    def server_update(self, task, shared, memory, update, rnd):
        return {name: value / 0 for name, value in shared.items()}, memory


def test_a_shared_model_that_leaves_the_finite_numbers_ends_the_run():
    with pytest.raises(DivergedError, match="round 1: the shared model has NaN"):
        train(ref.federation(), method=Exploding(tau=1), rounds=2)


def test_refusals_are_in_the_record():
    run = train(poisoned(), method=FedAvg(tau=3), rounds=2, clients_per_round=4, dtype="float64")
    assert [list(record.refused) for record in run.history] == [["client-1"], ["client-1"]]


def test_a_cohort_of_nothing_but_nonsense_ends_the_run():
    with pytest.raises(
        DivergedError,
        match=r"round 1: no reply .* Client 'a': the number 'smoothness' has values that are NaN",
    ):
        train(Federation.from_arrays({"a": _huge()}), rounds=2, dtype="float64")


def _huge():
    x = np.full((4, 3), 1e308)
    return x, [0, 1, 0, 1], x, [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("settings", "sizes"),
    [
        ({"participation": "independent", "probability": 0.5}, {0, 1, 2, 3, 4}),
        ({"participation": "uniform", "clients_range": [2, 3]}, {2, 3}),
        ({}, {4}),
    ],
)
def test_participation(settings, sizes):
    run = train(ref.federation(), method=PFLEGO(tau=1), rounds=40, eval_every=40, **settings)
    seen = {len(record.cohort) for record in run.history}
    assert seen <= sizes
    assert len(seen) > 1 or sizes == {4}


def test_dropout_is_drawn_from_the_clients_own_streams():
    """The state of torch's global generator makes no difference."""
    net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 5))
    runs = []
    for disturbance in (1, 2):
        torch.manual_seed(disturbance)
        runs.append(train(ref.federation(), model=net, head="2", method=FedAvg(tau=3), rounds=2, clients_per_round=2))
    ref.assert_same(runs[0].shared, ref.arrays(runs[1].shared), 0)


def test_a_sample_of_clients_is_evaluated_where_asked_and_the_protocol_says_so():
    federation = ref.federation(sizes=(5, 3, 8, 6, 7, 9, 4, 5), new=3)
    options = {"method": PFLEGO(tau=2), "rounds": 4, "eval_every": 2}
    sampled, whole = train(federation, eval_clients=2, **options), train(federation, **options)
    ref.assert_same(sampled.shared, ref.arrays(whole.shared), 0)
    rows = {row["client"]: row for row in whole.clients()}
    assert [row["role"] for row in sampled.clients()] == ["existing"] * 2 + ["new"] * 2
    assert all(row == rows[row["client"]] for row in sampled.clients())
    assert "a random sample of 2 of the 5 clients of the training" in sampled.summary.protocol
    assert "a random sample of 2 of the 3 clients held out" in sampled.summary.protocol
    assert "all 5 clients of the training" in whole.summary.protocol


class Preparing(FedAvg, Prepares):
    """A method that counts how often a client prepares."""

    calls: ClassVar[list[int]] = []

    def prepare(self, task, personal, data):
        self.calls.append(len(data.y))
        torch.ones(2, 3) @ torch.ones(3, 4)
        return {**personal, ".ready": torch.ones(())}


def test_a_client_prepares_once_however_often_it_is_evaluated():
    Preparing.calls.clear()
    train(ref.federation(new=1), method=Preparing(tau=1), rounds=3, clients_per_round=1, eval_every=1)
    assert sorted(Preparing.calls) == [1, 3, 5, 8]  # the sizes of all four


def test_preparation_counts_in_the_first_round_of_a_client():
    prepared = train(ref.federation(), method=Preparing(tau=1), rounds=3, clients_per_round=2, eval_every=1)
    plain = train(ref.federation(), method=FedAvg(tau=1), rounds=3, clients_per_round=2, eval_every=1)
    seen: set[str] = set()
    for ours, theirs in zip(prepared.history, plain.history, strict=True):
        first = set(ours.cohort) - seen
        assert ours.cost.flops - theirs.cost.flops == len(first) * 2 * 2 * 3 * 4
        seen |= first


def test_a_resumed_run_counts_preparation_in_the_same_rounds(tmp_path):
    """Clients that an evaluation has prepared before a run is stopped owe their preparation when it goes on."""
    options = {"method": Preparing(tau=1), "clients_per_round": 1, "eval_every": 1, "checkpoint_every": 1}
    whole = train(ref.federation(), rounds=6, **options)
    train(ref.federation(), rounds=2, out=tmp_path / "run", **options)
    Preparing.calls.clear()
    resumed = train(ref.federation(), rounds=6, out=tmp_path / "run", resume=True, **options)
    assert Preparing.calls == []
    flops = [record.cost.flops for record in whole.history]
    assert [record.cost.flops for record in resumed.history] == flops
    assert max(flops[2:]) > min(flops[2:])  # a later round had a client that owed its preparation


def test_a_broadcast_that_a_part_of_the_clients_waits_for_is_paid_for():
    per_client = (4 * 200 + 200 + 5 * 200 + 5) * 4
    for r, times in ((2, 2), (4, 1)):
        run = train(ref.federation(), method="scaffnew", rounds=1, clients_per_round=r)
        assert run.history[0].cost.bytes_down == times * r * per_client


@settings
class Overflowing(FedAvg):
    """FedAvg whose server keeps a number that becomes infinite in round 2, while the model stays finite."""

    def init_memory(self, task: Task, shared: Tree) -> Tree:
        return {".sum": torch.tensor(1e30)}

    def server_update(self, task: Task, shared: Tree, memory: Tree, update: Update, rnd: Round) -> tuple[Tree, Tree]:
        after, _ = super().server_update(task, shared, memory, update, rnd)
        return after, {".sum": memory[".sum"] * 1e6}


def test_a_memory_that_becomes_infinite_ends_the_run():
    with pytest.raises(DivergedError, match="round 2: the memory of the server's optimizer has NaN or infinite values"):
        train(ref.federation(), method=Overflowing(tau=1), rounds=3)


@settings
class Momentum(FedAvg):
    """FedAvg whose server keeps names that it does not announce in `init_memory`."""

    def server_update(self, task: Task, shared: Tree, memory: Tree, update: Update, rnd: Round) -> tuple[Tree, Tree]:
        memory = {name: 0.9 * memory[name] + v if name in memory else v for name, v in update.tensors.items()}
        return {name: value + memory[name] for name, value in shared.items()}, memory


def test_a_resumed_run_has_all_names_of_the_servers_memory(tmp_path):
    whole = train(ref.federation(), method=Momentum(tau=1), rounds=4)
    train(ref.federation(), method=Momentum(tau=1), rounds=2, out=tmp_path / "run")
    resumed = train(ref.federation(), method=Momentum(tau=1), rounds=4, out=tmp_path / "run", resume=True)
    for name, value in whole.shared.items():
        assert torch.equal(resumed.shared[name], value)


@settings
class Odd(FedAvg):
    """FedAvg whose server returns something odd."""

    what: str = ""

    def server_update(self, task: Task, shared: Tree, memory: Tree, update: Update, rnd: Round) -> tuple[Tree, Tree]:
        first = next(iter(shared))
        odd = {
            "scalar": ({**shared, first: torch.ones(())}, {}),
            "missing": ({name: value for name, value in shared.items() if name != first}, {}),
            "extra": ({**shared, "more": torch.ones(())}, {}),
            "none": None,
            "number": (shared, {"n": 3}),
            "type": ({**shared, first: shared[first].half()}, {}),
        }
        return odd[self.what]


@pytest.mark.parametrize("what", ["scalar", "missing", "extra", "none", "number", "type"])
def test_what_a_server_returns_is_checked(what):
    with pytest.raises(UserError, match=r"Odd.server_update (returned|failed in round 1)"):
        train(ref.federation(), method=Odd(tau=1, what=what), rounds=1)


@settings
class Silent(FedAvg):
    """FedAvg whose clients send nothing, or one tensor."""

    number: int = 0

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> Reply:
        reply = super().local_update(task, shared, personal, data, rnd)
        return reply._replace(tensors=dict([*reply.tensors.items()][: self.number]))


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize(("number", "missing"), [(0, "body.1.weight"), (1, "body.1.bias")])
def test_tensors_that_no_client_sends_are_named(number, missing, engine):
    with pytest.raises(UserError, match=f"Silent.local_update sent no '{missing}', and the default server_update"):
        train(ref.federation(), method=Silent(tau=1, number=number), rounds=1, engine=engine)
