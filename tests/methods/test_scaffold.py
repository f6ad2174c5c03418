"""SCAFFOLD against its paper: rounds by hand in NumPy, its invariant, and convergence where FedAvg drifts."""

import numpy as np
import pytest

import reference as ref
from coterie.core.tree import num_bytes, pick, under
from coterie.methods import FedAvg, Scaffold
from laboratory import LINEAR, least_squares, vector

ALL = ref.BODY + ref.HEAD


def test_three_rounds_by_hand():
    eta, rho, tau = 0.3, 0.8, 3
    setup = ref.setup(Scaffold(tau=tau, eta=eta, rho=rho))
    shared, store = setup.method.init_shared(setup.task), ref.store(setup)
    w = ref.arrays(setup.task.initial)
    zero = {name: np.zeros_like(value) for name, value in w.items()}
    c, own = zero, dict.fromkeys(range(4), zero)
    for index, cohort in enumerate(([0, 2], [1, 2, 3], [2, 0]), 1):
        ends, before = {}, dict(own)
        for i in cohort:
            params = w
            for _ in range(tau):
                g = ref.loss_and_gradient(params, *ref.examples(setup, i))[1]
                params = ref.step(params, {name: g[name] - own[i][name] + c[name] for name in ALL}, eta, ALL)
            ends[i] = params
            own[i] = {name: own[i][name] - c[name] + (w[name] - params[name]) / (tau * eta) for name in ALL}
        w = {name: w[name] + rho * sum(ends[i][name] - w[name] for i in cohort) / len(cohort) for name in ALL}
        c = {name: c[name] + sum(own[i][name] - before[i][name] for i in cohort) / 4 for name in ALL}
        shared = ref.play(setup, shared, {}, store, cohort, ref.announced(setup, len(cohort), index)).shared
        ref.assert_same(shared, {**w, **under("c", c)})
        for i in range(4):
            ref.assert_same(store[i], under("c_i", own[i]))


def test_the_first_round_is_that_of_fedavg_with_twice_the_bytes():
    scaffold, fedavg = ref.setup(Scaffold(tau=3, eta=0.3)), ref.setup(FedAvg(tau=3, eta=0.3))
    sent = []
    for setup in (scaffold, fedavg):
        shared, data = setup.method.init_shared(setup.task), setup.data(2, "train", 1)
        sent.append(setup.method.local_update(setup.task, shared, ref.store(setup)[2], data, ref.announced(setup, 1)))
    ref.assert_same(pick(sent[0].tensors, ALL), ref.arrays(sent[1].tensors), 1e-15)
    model = num_bytes(pick(sent[0].tensors, ALL))
    assert num_bytes(sent[0].tensors) - num_bytes(sent[1].tensors) == model
    assert num_bytes(sent[0].numbers) == num_bytes(sent[1].numbers)
    assert num_bytes(scaffold.method.init_shared(scaffold.task)) == 2 * model


def quadratic_rounds(method, rounds):
    setup, problems = least_squares(method)
    shared, store = method.init_shared(setup.task), ref.store(setup)
    for index in range(1, rounds + 1):
        shared = ref.play(setup, shared, {}, store, [0, 1, 2], ref.announced(setup, 3, index)).shared
        yield setup, problems, shared, store


def test_with_everyone_c_is_the_mean_and_one_step_is_gradient_descent():
    w = None
    for setup, problems, shared, store in quadratic_rounds(Scaffold(tau=1, eta=0.1), 4):
        w = vector(setup.task.initial, names=LINEAR) if w is None else w
        w = w - 0.1 * sum(q.gradient(w) for q in problems) / 3
        np.testing.assert_allclose(vector(shared, names=LINEAR), w, rtol=0, atol=1e-12)
        mean = sum(vector(store[i], "c_i", LINEAR) for i in range(3)) / 3
        np.testing.assert_allclose(vector(shared, "c", LINEAR), mean, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("method", "arrives"), [(Scaffold(tau=10, eta=0.05), True), (FedAvg(tau=10, eta=0.05), False)])
def test_many_local_steps_do_not_keep_it_from_the_minimum(method, arrives):
    *_, (_, problems, shared, _) = quadratic_rounds(method, 250)
    best = np.linalg.solve(sum(q.H for q in problems), sum(q.b for q in problems))
    distance = np.abs(vector(shared, names=LINEAR) - best).max()
    assert distance < 1e-8 if arrives else distance > 1e-3


def test_the_clients_model_has_no_control_variates():
    setup = ref.setup(Scaffold())
    shared, personal = setup.method.init_shared(setup.task), ref.store(setup)[0]
    assert setup.method.personal_params(setup.task, shared, personal).keys() == set(ALL)
