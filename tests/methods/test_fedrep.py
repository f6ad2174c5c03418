"""FedRep against its paper: rounds by hand in NumPy with every step through the whole net, and its limits."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import reference as ref
from coterie.core.counting import CountFlops
from coterie.core.steps import minibatch
from coterie.core.tree import shift
from coterie.errors import UserError
from coterie.measure.cost import local_work
from coterie.methods import FedBABU, FedRep


def heavy_ball(params, x, y, steps, rate, momentum, names):
    velocity = {name: np.zeros_like(params[name]) for name in names}
    for _ in range(steps):
        _, gradient = ref.loss_and_gradient(params, x, y)
        velocity = {name: momentum * velocity[name] + gradient[name] for name in names}
        params = ref.step(params, velocity, rate, names)
    return params


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_two_rounds_by_hand(momentum):
    setup = ref.setup(FedRep(tau=7, body_steps=3, beta=0.1, momentum=momentum))
    theta, heads = ref.arrays(setup.task.shared_body()), {i: ref.arrays(ref.store(setup)[i]) for i in range(4)}
    shared, store, sizes = setup.task.shared_body(), ref.store(setup), setup.federation.sizes()
    for index, cohort in enumerate(([0, 1, 2], [2, 1]), start=1):
        rnd, arrived = ref.announced(setup, 3, index), {}
        for i in cohort:
            x, y = ref.examples(setup, i)
            params = heavy_ball({**theta, **heads[i]}, x, y, 4, 0.1, momentum, ref.HEAD)
            arrived[i] = heavy_ball(params, x, y, 3, 0.1, momentum, ref.BODY)  # starts from rest again
            heads[i] = {name: arrived[i][name] for name in ref.HEAD}
            reply = setup.method.local_update(setup.task, shared, store[i], setup.data(i, "train", index), rnd)
            assert reply.numbers.keys() == {"loss"}
            ref.assert_same(shift(shared, reply.tensors), {name: arrived[i][name] for name in ref.BODY})
        total = sum(sizes[i] for i in cohort)
        theta = {name: sum(sizes[i] / total * arrived[i][name] for i in cohort) for name in ref.BODY}
        shared = ref.play(setup, shared, {}, store, cohort, rnd).shared
        ref.assert_same(shared, theta)
        for i in range(4):
            ref.assert_same(store[i], heads[i])


def test_without_head_steps_it_trains_the_body_under_a_fixed_head():
    """FedBABU does the same under the same head."""
    setup = ref.setup(FedRep(tau=4, body_steps=4, beta=0.2, momentum=0.5))
    shared, head, data = setup.task.shared_body(), ref.store(setup)[0], setup.data(0, "train", 1)
    mine = setup.method.local_update(setup.task, shared, head, data, ref.announced(setup, 1))
    assert all(torch.equal(mine.personal[name], head[name]) for name in ref.HEAD)
    babu = FedBABU(tau=4, beta=0.2, momentum=0.5)
    theirs = babu.local_update(setup.task, {**shared, **head}, {}, data, babu.plan(ref.announced(setup, 1)))
    for ours, others in zip(mine[:2], theirs[:2], strict=True):
        ref.assert_same(ours, ref.arrays(others), 0)


def test_more_body_steps_than_steps_in_all_are_refused():
    with pytest.raises(UserError, match=r"method\.body_steps = 6 must not be larger than method\.tau = 5"):
        ref.announced(ref.setup(FedRep(tau=5, body_steps=6)), 1)


@pytest.mark.usefixtures("taped")
def test_head_steps_do_not_pass_the_body(monkeypatch):
    setup = ref.setup(FedRep(tau=50, body_steps=5))
    forwards, original = [], setup.task._features
    monkeypatch.setattr(setup.task, "_features", lambda *given: forwards.append(1) or original(*given))
    rnd = ref.announced(setup, 1)
    setup.method.local_update(setup.task, setup.task.shared_body(), ref.store(setup)[0], setup.data(0, "train", 1), rnd)
    assert len(forwards) == 6
    assert setup.method.passes(5, rnd)[:3] == (5, 6, 5)


def test_adaptation_is_head_descent_at_the_current_body():
    setup = ref.setup(FedRep(beta=0.3, momentum=0.5))
    theta, head = setup.task.shared_body(), ref.store(setup)[0]
    params = heavy_ball(ref.arrays({**theta, **head}), *ref.examples(setup, 0), 5, 0.3, 0.5, ref.HEAD)
    adapted = setup.method.adapt(setup.task, theta, head, setup.data(0, "train", 0), 5)
    ref.assert_same(adapted, {name: params[name] for name in ref.HEAD})


def test_a_head_that_is_not_one_linear_layer_takes_the_same_steps():
    setup = ref.setup(FedRep(tau=6, body_steps=1, beta=0.1, momentum=0.9))
    given = setup.task.shared_body(), ref.store(setup)[0], setup.data(0, "train", 1), ref.announced(setup, 1)
    known = setup.method.local_update(setup.task, *given)
    setup.task.head_is_linear = False
    derived = setup.method.local_update(setup.task, *given)
    for one, other in zip(known, derived, strict=True):
        ref.assert_same(one, ref.arrays(other))


def test_epochs_of_minibatches_by_hand():
    """Two epochs on the head, then one on the body, each of 8 examples in batches of 3. The cost is that of passes."""
    method = FedRep(tau=3, body_steps=1, beta=0.2, momentum=0.5, unit="epochs", batch_size=3)
    setup = ref.setup(method)
    theta, head, data = setup.task.shared_body(), ref.store(setup)[2], setup.data(2, "train", 1)
    rnd = ref.announced(setup, 1)
    params = ref.arrays({**theta, **head})
    for names, steps in ((ref.HEAD, 6), (ref.BODY, 3)):
        velocity = {name: np.zeros_like(params[name]) for name in names}
        for step in range(steps):
            batch = minibatch(data, 3, step)
            _, gradient = ref.loss_and_gradient(params, batch.x.numpy(), batch.y.numpy())
            velocity = {name: 0.5 * velocity[name] + gradient[name] for name in names}
            params = ref.step(params, velocity, 0.2, names)
    with CountFlops() as counted:
        reply = method.local_update(setup.task, theta, head, data, rnd)
    ref.assert_same(shift(theta, reply.tensors), {name: params[name] for name in ref.BODY})
    ref.assert_same(reply.personal, {name: params[name] for name in ref.HEAD})
    width = setup.load.num_outputs(2)
    assert local_work(method, setup.load.work.probe, [(8, width)], rnd).flops == counted.total
    assert replace(method, unit="steps").passes(8, rnd) is None


def test_epochs_of_all_examples_are_steps_to_the_bit():
    options = {"tau": 5, "body_steps": 2, "beta": 0.2}
    setup = ref.setup(FedRep(**options))
    theta, head, data = setup.task.shared_body(), ref.store(setup)[0], setup.data(0, "train", 1)
    steps = setup.method.local_update(setup.task, theta, head, data, ref.announced(setup, 1))
    by_epochs = setup.having(method=FedRep(**options, unit="epochs"))
    epochs = by_epochs.method.local_update(setup.task, theta, head, data, ref.announced(by_epochs, 1))
    for one, other in zip(steps, epochs, strict=True):
        ref.assert_same(one, ref.arrays(other), 0)
