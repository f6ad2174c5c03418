"""Local work in epochs, for clients of any sizes that are computed together."""

import numpy as np
import pytest
import torch
from test_steps import chosen, numbered, problem, softmax_task
from torch import nn

from coterie import Federation, registry, train
from coterie.core.data import Data
from coterie.core.method import Passes, sgd_passes
from coterie.core.steps import local_sgd, minibatch, num_steps, turns
from coterie.core.task import Task
from coterie.core.tree import stack
from coterie.errors import UserError
from coterie.methods import FedAvg
from coterie.recipe import Recipe
from coterie.settings import Epochs, length
from engines import assert_same_rounds, game

SIZES = [3, 10, 7, 4]  # in batches of 4, epochs have 1, 3, 2 and 1 steps


@pytest.mark.parametrize(("given", "expected"), [(5, 5), (0, 0), ("1 epoch", 1), ("1 epochs", 1), ("12 epochs", 12)])
def test_a_length_is_steps_or_epochs(given, expected):
    assert length(given) == expected
    assert isinstance(length(given), Epochs) == isinstance(given, str)


@pytest.mark.parametrize("wrong", [-1, "", "epoch", "0 epochs", "1.5 epochs", "2epochs", " 1 epoch", "-1 epochs", "5"])
def test_what_is_no_length_is_refused_wherever_it_is_said(wrong):
    with pytest.raises(UserError, match="epochs"):
        length(wrong)
    for section, key in (("method", "tau"), ("eval", "adapt_steps")):
        name = {"name": "fedavg"} if section == "method" else {}
        with pytest.raises(UserError) as caught:
            Recipe.parse({section: {**name, key: wrong}})
        assert (
            str(caught.value) == f'{section}.{key} = {wrong!r}: must be at least 1 step, or epochs such as "2 epochs"'
        )


def test_no_local_work_is_refused_but_no_adaptation_is_not():
    assert Recipe.parse({"eval": {"adapt_steps": 0}}).eval.adapt_steps == 0
    with pytest.raises(UserError, match=r"method\.tau = 0: must be at least 1"):
        Recipe.parse({"method": {"name": "fedavg", "tau": 0}})


def test_a_recipe_keeps_what_it_was_given():
    tree = {"method": {"name": "fedavg", "tau": "3 epochs"}, "eval": {"adapt_steps": "1 epoch"}}
    written = Recipe.parse(tree).as_dict()
    assert written["method"]["tau"] == "3 epochs"
    assert written["eval"]["adapt_steps"] == "1 epoch"
    assert Recipe.parse(written).as_dict() == written


@pytest.mark.parametrize(("size", "expected"), [(4, [2, 6, 4, 2]), (3, [2, 8, 6, 4]), (0, [2] * 4), (10, [2] * 4)])
def test_an_epoch_has_as_many_steps_as_the_clients_examples_make_batches(size, expected):
    assert [int(num_steps(Epochs(2), numbered(n), size)) for n in SIZES] == expected
    assert [sgd_passes(n, Epochs(2), size).body_forwards for n in SIZES] == expected
    assert [num_steps(5, numbered(n), size) for n in SIZES] == [5] * 4
    assert sgd_passes(10, Epochs(2), 4, each=3) == Passes(10 / 3, 18, 18, 18), "the third batch has 2 examples"
    assert sgd_passes(3, 5, 4) == Passes(3, 5, 5, 5)


def test_every_example_is_seen_once_an_epoch_and_the_last_step_is_known():
    taken = list(turns(Epochs(2), numbered(10), 4))
    assert sorted(number for turn in taken for number in chosen(turn.batch)) == sorted([*range(10)] * 2)
    assert [bool(turn.last) for turn in taken] == [False] * 5 + [True]
    assert [turn.last for turn in turns(3, numbered(10), 4)] == [False, False, True]
    of_others = list(turns(Epochs(1), numbered(7, padding=3), 4))
    assert [bool(turn.own) for turn in of_others] == [True, True, False]
    assert [bool(turn.last) for turn in of_others] == [False, True, False]


def two_layers(inputs: int = 3, outputs: int = 4) -> Task:
    net = nn.Sequential()
    net.add_module("body", nn.Sequential(nn.Linear(inputs, 5), nn.Tanh()))
    net.add_module("head", nn.Linear(5, outputs))
    torch.manual_seed(0)
    for value in net.parameters():
        nn.init.normal_(value)
    return Task(net.double(), "head", torch.zeros(1, inputs, dtype=torch.float64))


def padded(data: Data, to: int) -> Data:
    more = to - len(data.y)
    return data._replace(
        x=torch.cat([data.x, torch.full((more, *data.x.shape[1:]), 7.0, dtype=data.x.dtype)]),
        y=torch.cat([data.y, torch.zeros(more, dtype=data.y.dtype)]),
        mask=torch.cat([data.mask, torch.zeros(more, dtype=torch.bool)]),
    )


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}])
def test_clients_of_unequal_size_do_together_what_they_do_alone(options):
    """Steps that only other clients take change neither parameters nor the loss at the last gradient."""
    task, own = two_layers(), [problem(n, seed=n) for n in SIZES]
    cohort = Data(*(torch.stack(parts) for parts in zip(*(padded(data, 10) for data in own), strict=True)))
    together, losses = torch.func.vmap(lambda data: local_sgd(task, task.initial, data, Epochs(2), 0.3, 4, **options))(
        cohort
    )
    for i, (data, steps) in enumerate(zip(own, (2, 6, 4, 2), strict=True)):
        counted, loss = local_sgd(task, task.initial, data, steps, 0.3, 4, **options)
        alone, same = local_sgd(task, task.initial, data, Epochs(2), 0.3, 4, **options)
        for name, value in counted.items():
            assert torch.equal(alone[name], value)
            torch.testing.assert_close(together[name][i], value, rtol=0, atol=1e-12)
        assert torch.equal(same, loss)
        assert float(losses[i]) == pytest.approx(float(loss), rel=1e-12)


def test_steps_of_others_leave_buffers_and_counters_as_they_are():
    counter = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 4))
    task, own = Task(counter.double(), "1", torch.ones(1, 3, dtype=torch.float64)), [problem(4, seed=0), problem(8)]
    cohort = Data(*(torch.stack(parts) for parts in zip(*(padded(data, 8) for data in own), strict=True)))
    start = stack([task.initial] * 2)
    together, _ = torch.func.vmap(lambda params, data: local_sgd(task, params, data, Epochs(1), 0.3, 4))(start, cohort)
    assert together["0.num_batches_tracked"].tolist() == [1, 2]
    alone, _ = local_sgd(task, task.initial, own[0], 1, 0.3, 4)
    torch.testing.assert_close(together["0.running_mean"][0], alone["0.running_mean"], rtol=0, atol=1e-12)


def test_rates_may_differ_from_step_to_step():
    task, data = softmax_task(3, 4), problem(10)
    asked = []
    local_sgd(task, task.initial, data, Epochs(2), lambda step: asked.append(step) or 0.1, 4)
    assert asked == list(range(6))


def clients() -> Federation:
    rng = np.random.default_rng(0)
    made = {}
    for i, n in enumerate((5, 12, 7)):
        x, y = rng.normal(size=(n + 4, 3)), np.resize([0, 1], n + 4)
        made[f"c{i}"] = (x[:n], y[:n], x[n:], y[n:])
    return Federation.from_arrays(made, new=["c2"])


def test_adaptation_in_epochs_from_python():
    method = FedAvg(tau="1 epoch", batch_size=2)
    options = {"method": method, "model": "mlp", "rounds": 1, "engine": "loop", "dtype": "float64"}
    by_epochs, by_steps = (train(clients(), adapt_steps=steps, **options) for steps in ("2 epochs", 8))
    row, other = (run.clients()[-1] for run in (by_epochs, by_steps))
    assert row == other  # the 7 examples of the new client make 4 batches per epoch
    assert "after 2 local adaptation epochs on" in by_epochs.summary.protocol
    assert "before and after 2 such epochs." in by_epochs.summary.protocol
    assert "after 8 local adaptation steps on" in by_steps.summary.protocol
    x, y = np.random.default_rng(1).normal(size=(7, 3)), [0, 1, 0, 1, 0, 1, 1]
    models = [by_epochs.personalize(x, y, steps) for steps in ("2 epochs", 8, None, 2)]
    weights = [model.state_dict()["head.weight"] for model in models]
    assert torch.equal(weights[0], weights[1])
    assert torch.equal(weights[0], weights[2])
    assert not torch.equal(weights[0], weights[3])
    with pytest.raises(UserError, match="epochs"):
        by_epochs.personalize(x, y, -1)


def test_the_cost_of_epochs_is_each_clients_own():
    run = train(clients(), method=FedAvg(tau="2 epochs", batch_size=2), rounds=1, adapt_steps=0)
    assert run.history[0].cost.body_forwards == 2 * (3 + 6)


def test_batch_norm_sees_the_examples_of_a_short_batch_only():
    """The last of 5 examples in batches of 4 is alone. Statistics of the batch are those of that example."""
    norm = nn.Sequential(nn.BatchNorm1d(3, momentum=1.0), nn.Linear(3, 4))
    task, data = Task(norm.double(), "1", torch.ones(1, 3, dtype=torch.float64)), problem(5)
    last = minibatch(data, 4, 1)
    assert last.x.shape == (1, 3)
    assert last.mask.tolist() == [True]
    after, _ = local_sgd(task, task.initial, data, 2, 0.0, 4)
    torch.testing.assert_close(after["0.running_mean"], last.x[0])


def test_engines_agree_on_short_batches_of_batch_norm():
    """Clients of 9, 12 and 30 examples in batches of 4."""
    setup = game("fedavg", "norm average", batch=4)
    assert_same_rounds(setup, registry.load("engine", "vmap")(), [[0, 2], [0, 4]], 1e-9)


@pytest.mark.parametrize(("size", "steps", "batch", "expected"), [(10, 6, 4, 20), (10, 4, 4, 14), (3, 5, 4, 15)])
def test_the_cost_of_a_short_batch_is_that_of_its_examples(size, steps, batch, expected):
    passes = sgd_passes(size, steps, batch)
    assert passes.batch * passes.body_forwards == pytest.approx(expected)
