"""FedProx against its paper: a round by hand in NumPy, and FedAvg as its limit, bit for bit."""

import numpy as np
import pytest
import torch

import reference as ref
from coterie.core.tree import shift
from coterie.methods import FedAvg, FedProx

ALL = ref.BODY + ref.HEAD


def locally(setup, start, client, steps):
    x, y = ref.examples(setup, client)
    params = start
    for _ in range(steps):
        _, gradient = ref.loss_and_gradient(params, x, y)
        pulled = {name: gradient[name] + setup.method.mu * (params[name] - start[name]) for name in ALL}
        params = ref.step(params, pulled, setup.method.eta, ALL)
    return params


def test_a_round_by_hand():
    setup = ref.setup(FedProx(tau=4, eta=0.2, mu=0.7))
    shared, cohort = setup.task.shared_model(), [0, 2, 3]
    start, sizes = ref.arrays(shared), setup.federation.sizes()
    arrived = {i: locally(setup, start, i, steps=4) for i in cohort}
    total = sum(sizes[i] for i in cohort)
    expected = {name: sum(sizes[i] / total * arrived[i][name] for i in cohort) for name in start}
    rnd = ref.announced(setup, 3)
    played = ref.play(setup, shared, {}, ref.store(setup), cohort, rnd)
    ref.assert_same(played.shared, expected)
    for i in cohort:
        reply = setup.method.local_update(setup.task, shared, {}, setup.data(i, "train", 1), rnd)
        assert reply.personal == {}
        ref.assert_same(shift(shared, reply.tensors), arrived[i])  # the model that `participants` is scored with


def test_the_loss_is_that_of_the_examples_alone():
    setup = ref.setup(FedProx(tau=2, eta=0.2, mu=5.0))
    shared = setup.task.shared_model()
    before_last = locally(setup, ref.arrays(shared), 0, steps=1)
    reply = setup.method.local_update(setup.task, shared, {}, setup.data(0, "train", 1), ref.announced(setup, 1))
    assert reply.numbers["loss"].item() == pytest.approx(ref.loss_and_gradient(before_last, *ref.examples(setup, 0))[0])


@pytest.mark.parametrize("batch_size", [0, 2])
def test_without_the_proximal_term_it_is_fedavg_to_the_bit(batch_size):
    trees = []
    for method in (FedProx(tau=4, eta=0.2, mu=0, batch_size=batch_size), FedAvg(tau=4, eta=0.2, batch_size=batch_size)):
        setup = ref.setup(method)
        shared, data = setup.task.shared_model(), setup.data(2, "train", 1)
        played = ref.play(setup, shared, {}, ref.store(setup), [0, 1, 2], ref.announced(setup, 3))
        trees.append({**played.shared, "loss": torch.tensor(played.loss)})
        trees.append(method.adapt(setup.task, shared, {}, data, 3))
    for prox, plain in zip(trees[:2], trees[2:], strict=True):
        assert prox.keys() == plain.keys()
        assert all(torch.equal(prox[name], plain[name]) for name in plain)


def test_a_strong_pull_keeps_clients_together():
    """The minimizer of loss + (mu/2)||w - w_round||² moves like 1/mu."""
    moved = []
    for mu in (10.0, 100.0):
        setup = ref.setup(FedProx(tau=400, eta=0.5 / mu, mu=mu))
        shared = setup.task.shared_model()
        rnd = ref.announced(setup, 1)
        reply = setup.method.local_update(setup.task, shared, {}, setup.data(0, "train", 1), rnd)
        moved.append(np.sqrt(sum(float((reply.tensors[name] ** 2).sum()) for name in ALL)))
    assert moved[0] / moved[1] == pytest.approx(10, rel=0.15)
