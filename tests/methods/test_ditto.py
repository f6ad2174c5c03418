"""Ditto against its paper: rounds by hand in NumPy, and its two halves: FedAvg, and local training."""

import pytest
import torch

import reference as ref
from coterie.core.method import Passes
from coterie.core.tree import pick, shift
from coterie.methods import Ditto, FedAvg, Local

ALL = ref.BODY + ref.HEAD


def descent(params, x, y, steps, rate, lam=0.0, centre=None):
    for _ in range(steps):
        _, gradient = ref.loss_and_gradient(params, x, y)
        if centre is not None:
            gradient = {name: gradient[name] + lam * (params[name] - centre[name]) for name in ALL}
        params = ref.step(params, gradient, rate, ALL)
    return params


def test_two_rounds_by_hand():
    setup = ref.setup(Ditto(tau=3, eta=0.2, beta=0.1, lam=0.6))
    shared, store, sizes = setup.task.shared_model(), ref.store(setup), setup.federation.sizes()
    w = ref.arrays(shared)
    own = {i: ref.arrays(pick(ref.store(setup)[i], ALL)) for i in range(4)}
    for index, cohort in enumerate(([0, 1], [1, 2, 3]), start=1):
        arrived, rnd = {}, ref.announced(setup, 3, index)
        for i in cohort:
            x, y = ref.examples(setup, i)
            arrived[i] = descent(w, x, y, 3, 0.2)
            own[i] = descent(own[i], x, y, 3, 0.1, 0.6, w)  # pulled towards w, not towards w_i
            reply = setup.method.local_update(setup.task, shared, store[i], setup.data(i, "train", index), rnd)
            assert reply.tensors.keys() == set(ALL)
            assert reply.numbers.keys() == {"loss"}
            for name in ALL:  # what is sent depends on w_i only
                torch.testing.assert_close(reply.tensors[name], torch.from_numpy(arrived[i][name] - w[name]))
            scored = setup.method.personal_params(setup.task, shift(shared, reply.tensors), reply.personal)
            ref.assert_same(pick(scored, ALL), own[i])
        total = sum(sizes[i] for i in cohort)
        w = {name: sum(sizes[i] / total * arrived[i][name] for i in cohort) for name in ALL}
        shared = ref.play(setup, shared, {}, store, cohort, rnd).shared
        ref.assert_same(shared, w)
        for i in range(4):
            ref.assert_same(pick(store[i], ALL), own[i])


def test_a_round_that_pulls_towards_the_trained_model_by_hand():
    setup = ref.setup(Ditto(tau=3, eta=0.2, beta=0.1, lam=0.6, towards="trained"))
    shared = {name: value + 0.1 for name, value in setup.task.shared_model().items()}
    w, store, rnd = ref.arrays(shared), ref.store(setup), ref.announced(setup, 2)
    arrived, own = {}, {}
    for i in (0, 2):
        x, y = ref.examples(setup, i)
        arrived[i] = descent(w, x, y, 3, 0.2)
        own[i] = descent(ref.arrays(pick(store[i], ALL)), x, y, 3, 0.1, 0.6, arrived[i])
        # adaptation does the same, from the shared model at a client's first visit
        adapted = setup.method.adapt(setup.task, shared, store[i], setup.data(i, "train", 0), 4)
        ref.assert_same(pick(adapted, ALL), descent(w, x, y, 4, 0.1, 0.6, descent(w, x, y, 4, 0.2)))
    played = ref.play(setup, shared, {}, store, [0, 2], rnd)
    ref.assert_same(played.shared, {name: (5 * arrived[0][name] + 8 * arrived[2][name]) / 13 for name in ALL})
    for i in (0, 2):
        ref.assert_same(pick(store[i], ALL), own[i])


def test_without_local_steps_on_the_shared_model_both_pulls_are_the_same():
    """With eta = 0 the trained model is the one that was sent."""
    after = []
    for towards in ("sent", "trained"):
        setup = ref.setup(Ditto(tau=3, eta=0.0, beta=0.1, lam=0.6, towards=towards))
        shared, data = setup.task.shared_model(), setup.data(2, "train", 1)
        start = {name: value + (name != ".visited") * 0.1 for name, value in ref.store(setup)[2].items()}
        start[".visited"] = torch.tensor(True)
        after.append(setup.method.local_update(setup.task, shared, start, data, ref.announced(setup, 1)).personal)
    assert all(torch.equal(after[0][name], after[1][name]) for name in ALL)


@pytest.mark.parametrize("batch_size", [0, 2])
def test_the_shared_half_is_fedavg_to_the_bit(batch_size):
    after = []
    for method in (
        Ditto(tau=3, eta=0.2, beta=0.4, batch_size=batch_size),
        FedAvg(tau=3, eta=0.2, batch_size=batch_size),
    ):
        setup = ref.setup(method)
        rnd = ref.announced(setup, 3)
        after.append(ref.play(setup, setup.task.shared_model(), {}, ref.store(setup), [0, 1, 2], rnd).shared)
    assert all(torch.equal(after[0][name], after[1][name]) for name in ALL)


@pytest.mark.parametrize("batch_size", [0, 2])
def test_without_the_pull_the_personal_half_is_local_training_to_the_bit(batch_size):
    ditto, local = Ditto(tau=3, beta=0.2, lam=0, batch_size=batch_size), Local(tau=3, beta=0.2, batch_size=batch_size)
    setup = ref.setup(ditto)
    shared = {name: value + 1 for name, value in setup.task.shared_model().items()}
    v = alone = ref.store(setup)[2]
    for index in (1, 2):
        data, rnd = setup.data(2, "train", index), ref.announced(setup, 1, index)
        v = ditto.local_update(setup.task, shared, v, data, rnd).personal
        alone = local.local_update(setup.task, {}, alone, data, rnd).personal
        assert all(torch.equal(v[name], alone[name]) for name in ALL)


def test_who_was_never_visited_uses_and_adapts_the_shared_model():
    setup = ref.setup(Ditto(tau=2, eta=0.2, beta=0.1, lam=0.6))
    shared = {name: value + 0.1 for name, value in setup.task.shared_model().items()}
    data = setup.data(0, "train", 0)
    x, y = ref.examples(setup, 0)
    w = ref.arrays(shared)
    ref.assert_same(pick(setup.method.personal_params(setup.task, shared, ref.store(setup)[0]), ALL), w, 0)
    adapted = setup.method.adapt(setup.task, shared, ref.store(setup)[0], data, 4)
    ref.assert_same(pick(adapted, ALL), descent(w, x, y, 4, 0.1, 0.6, w))

    visited = setup.method.local_update(setup.task, shared, ref.store(setup)[0], data, ref.announced(setup, 1)).personal
    own = ref.arrays(pick(visited, ALL))
    ref.assert_same(pick(setup.method.personal_params(setup.task, shared, visited), ALL), own, 0)
    adapted = setup.method.adapt(setup.task, shared, visited, data, 4)
    ref.assert_same(pick(adapted, ALL), descent(own, x, y, 4, 0.1, 0.6, w))


def test_a_visit_costs_two_models():
    setup = ref.setup(Ditto(tau=7))
    assert setup.method.passes(5, ref.announced(setup, 1)) == Passes(5, 14, 14, 14)
