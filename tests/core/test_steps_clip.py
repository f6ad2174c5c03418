"""Clipped local steps: by hand in NumPy, on every path, and as options of methods."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import reference as ref
from coterie.clients.vmap import Vmap
from coterie.core.steps import Pull, clipped, fine_tuned, head_descent, local_sgd
from coterie.core.steps.batches import minibatch
from coterie.core.tree import pick
from coterie.methods import Ditto, FedAvg, FedPer, FedRep, Local
from coterie.settings import Epochs
from engines import assert_same_rounds, game

ALL = ref.BODY + ref.HEAD
LIMIT = 0.9
"""Between the norms of the gradients that the tests take, so that some steps are clipped and others are not."""


def limited(gradient, names, limit=LIMIT):
    """Return the gradient over the names, scaled as a whole, and its norm before."""
    norm = np.sqrt(sum((gradient[name] ** 2).sum() for name in names))
    return {name: min(1, limit / norm) * gradient[name] for name in names}, norm


def descent(params, data, steps, rate, names=ALL, batch=0, limit=LIMIT, centre=None, mu=0.0):
    """Take local steps in NumPy. Returns (params, norms of all gradients)."""
    norms = []
    for step in range(steps):
        part = minibatch(data, batch, step)
        _, gradient = ref.loss_and_gradient(params, part.x.numpy(), part.y.numpy())
        if centre is not None:
            gradient = {name: gradient[name] + mu * (params[name] - centre[name]) for name in names}
        gradient, norm = limited(gradient, names, limit)
        norms.append(norm)
        params = ref.step(params, gradient, rate, names)
    return params, norms


@pytest.mark.parametrize("batch", [0, 3])
@pytest.mark.parametrize("mu", [0.0, 0.5])
def test_steps_by_hand(batch, mu):
    """The norm is that of all parameters together, with the pull."""
    setup = ref.setup(FedAvg())
    data, start = setup.data(2, "train", 1), {name: 3 * value for name, value in setup.task.initial.items()}
    centre = setup.task.initial
    expected, norms = descent(ref.arrays(start), data, 8, 0.5, batch=batch, centre=ref.arrays(centre), mu=mu)
    assert min(norms) < LIMIT < max(norms)
    pull = Pull(mu, centre) if mu else None
    after, _ = local_sgd(setup.task, start, data, 8, 0.5, batch, clip=LIMIT, pull=pull)
    ref.assert_same(after, expected)
    plain, _ = local_sgd(setup.task, start, data, 8, 0.5, batch, pull=pull)
    assert not torch.allclose(plain["head.weight"], after["head.weight"])


def test_a_limit_that_is_never_reached_changes_nothing():
    setup = ref.setup(FedAvg())
    data = setup.data(2, "train", 1)
    plain, loss = local_sgd(setup.task, setup.task.initial, data, 5, 0.5, 3)
    after, its_loss = local_sgd(setup.task, setup.task.initial, data, 5, 0.5, 3, clip=1e6)
    ref.assert_same(after, ref.arrays(plain))
    assert float(loss) == pytest.approx(float(its_loss), rel=1e-12)


def test_zero_is_off_and_a_zero_gradient_stays_zero():
    g = {"a": torch.tensor([3.0, 4.0]), "b": torch.tensor(12.0)}
    assert clipped(g, 0) is g
    assert all(torch.equal(value, g[name]) for name, value in clipped(g, 13).items())
    assert clipped(g, 1.3)["b"] == pytest.approx(1.2)
    assert not clipped({"a": torch.zeros(3)}, 1.0)["a"].any()


def test_only_the_trained_part_counts_towards_the_norm():
    setup = ref.setup(FedAvg())
    data = setup.data(2, "train", 1)
    start = {name: 3 * value for name, value in setup.task.initial.items()}
    expected, norms = descent(ref.arrays(start), data, 6, 0.5, names=ref.HEAD, batch=3)
    assert min(norms) < LIMIT < max(norms)
    after = fine_tuned(setup.task, start, data, 6, 0.5, 3, over=ref.HEAD, clip=LIMIT)
    ref.assert_same(after, expected)
    features, head = setup.task.features(start, data.x), pick(start, ref.HEAD)
    on_features = head_descent(setup.task, head, features, data, 6, 0.5, batch=3, clip=LIMIT)
    ref.assert_same(on_features, pick(expected, ref.HEAD))


def test_head_steps_on_minibatches_are_local_steps_on_the_head():
    setup = ref.setup(FedAvg())
    data, start = setup.data(2, "train", 1), setup.task.initial
    features, head = setup.task.features(start, data.x), pick(start, ref.HEAD)
    for steps in (4, Epochs(2)):
        expected, _ = local_sgd(setup.task, start, data, steps, 0.5, 3, over=ref.HEAD, momentum=0.6)
        found = head_descent(setup.task, head, features, data, steps, 0.5, 0.6, batch=3)
        ref.assert_same(found, ref.arrays(pick(expected, ref.HEAD)))


METHODS = {
    "fedavg": (FedAvg, {"eta": 0.5, "tau": 4}),
    "fedper": (FedPer, {"beta": 0.5, "tau": 4}),
    "local": (Local, {"beta": 0.5, "tau": 4}),
    "ditto": (Ditto, {"eta": 0.5, "beta": 0.5, "tau": 4}),
    "fedrep": (FedRep, {"beta": 0.5, "tau": 6, "body_steps": 2}),
}


@pytest.mark.parametrize("name", METHODS)
def test_every_method_with_the_setting_clips_its_updates_and_its_adaptation(name):
    """All rates and limits scale together: a tiny limit leaves steps of the length rate * limit."""
    kind, options = METHODS[name]
    setup = ref.setup(kind(**options, clip=1e-3))
    shared, store, data = setup.method.init_shared(setup.task), ref.store(setup), setup.data(2, "train", 1)
    before = setup.method.personal_params(setup.task, shared, store[2])
    reply = setup.method.local_update(setup.task, shared, store[2], data, ref.announced(setup, 1))
    adapted = setup.method.adapt(setup.task, shared, store[2], data, 5)
    moves = [{name: reply.tensors[name] for name in reply.tensors if not name.startswith(".")}]
    moves += [
        {name: tree[name] - before[name] for name in setup.task.params if name in tree}
        for tree in (reply.personal, adapted)
    ]
    for move, steps in zip(moves, (options["tau"], options["tau"], 5), strict=True):
        if move:
            length = float(torch.stack([value.norm() for value in move.values()]).norm())
            assert 0 < length <= 1.0001 * steps * 0.5 * 1e-3


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("batch", [0, 2])
def test_engines_agree_on_clipped_steps(name, batch):
    setup = game(name, batch=batch, clip=0.3)
    assert_same_rounds(setup, Vmap(), [[0, 1, 2, 3, 4, 5], [4, 1]], 1e-9, adapt_steps=Epochs(2))


@pytest.mark.parametrize("kind", [FedAvg, FedPer, Local])
def test_adaptation_of_the_head_alone(kind):
    """By hand, in epochs of minibatches. The body stays as the client has it."""
    rate = {"eta" if kind is FedAvg else "beta": 0.3}
    setup = ref.setup(kind(**rate, batch_size=3, adapts="head"))
    shared, store, data = setup.method.init_shared(setup.task), ref.store(setup), setup.data(2, "train", 0)
    start = ref.arrays(setup.method.personal_params(setup.task, shared, store[2]))
    expected, _ = descent(start, data, 6, 0.3, names=ref.HEAD, batch=3, limit=1e9)  # 8 examples, 3 steps an epoch
    adapted = setup.method.adapt(setup.task, shared, store[2], data, Epochs(2))
    ref.assert_same(setup.method.personal_params(setup.task, shared, adapted), expected)
    assert all(np.array_equal(expected[name], start[name]) for name in ref.BODY)
    whole = replace(setup.method, adapts="model").adapt(setup.task, shared, store[2], data, Epochs(2))
    assert not torch.equal(whole["body.1.weight"], torch.from_numpy(start["body.1.weight"]))
