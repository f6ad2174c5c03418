"""FedDANE against its paper: two half rounds by hand in NumPy, and its limits."""

import numpy as np
import pytest
import torch

import reference as ref
from coterie import Federation
from coterie.core.method import Passes
from coterie.core.tree import pick
from coterie.methods import FedDANE, FedProx
from coterie.models.logreg import LogReg

ALL = ref.BODY + ref.HEAD


def gradients(setup, w):
    return [ref.loss_and_gradient(w, *ref.examples(setup, i))[1] for i in range(4)]


def averaged(setup, trees, cohort):
    sizes = setup.federation.sizes()
    return {name: sum(sizes[i] * trees[i][name] for i in cohort) / sizes[cohort].sum() for name in ALL}


def play(setup, shared, cohort, index):
    return ref.play(setup, shared, {}, ref.store(setup), cohort, ref.announced(setup, len(cohort), index))


def test_two_rounds_of_the_paper_by_hand():
    setup = ref.setup(FedDANE(tau=3, eta=0.2, mu=0.7))
    shared = setup.method.init_shared(setup.task)
    w = ref.arrays(pick(shared, ALL))
    for index, (first, second) in ((1, ([0, 2, 3], [1, 2])), (3, ([1, 2], [0, 1, 2]))):
        played = play(setup, shared, first, index)
        each = gradients(setup, w)
        g = averaged(setup, each, first)
        ref.assert_same(pick(played.shared, ALL), ref.arrays(pick(shared, ALL)), 0)  # the model stays, exactly
        ref.assert_same({name: played.shared[f".g.{name}"] for name in ALL}, g)

        shared, arrived = play(setup, played.shared, second, index + 1).shared, {}
        for i in second:
            params = w
            for _ in range(3):
                _, own = ref.loss_and_gradient(params, *ref.examples(setup, i))
                step = {n: own[n] + g[n] - each[i][n] + 0.7 * (params[n] - w[n]) for n in ALL}
                params = ref.step(params, step, 0.2, ALL)
            arrived[i] = params
        w = averaged(setup, arrived, second)
        ref.assert_same(pick(shared, ALL), w)


@pytest.mark.parametrize("second", [[0], [1, 3], [0, 1, 2, 3]])
@pytest.mark.parametrize("mu", [0.0, 0.7])
def test_one_step_with_the_gradient_of_all_clients_is_gradient_descent(mu, second):
    """Whoever is in the second cohort, the step is along g: the client's own gradient cancels."""
    setup = ref.setup(FedDANE(tau=1, eta=0.3, mu=mu))
    shared = setup.method.init_shared(setup.task)
    w = ref.arrays(pick(shared, ALL))
    full = averaged(setup, gradients(setup, w), [0, 1, 2, 3])
    after = play(setup, play(setup, shared, [0, 1, 2, 3], 1).shared, second, 2).shared
    ref.assert_same(pick(after, ALL), ref.step(w, full, 0.3, ALL))


def test_with_one_client_it_is_fedprox():
    options = {"tau": 4, "eta": 0.2, "mu": 0.7}
    dane, prox = (ref.setup(method) for method in (FedDANE(**options), FedProx(**options)))
    sent = play(dane, dane.method.init_shared(dane.task), [2], 1).shared
    after = play(dane, sent, [2], 2).shared
    expected = play(prox, prox.task.shared_model(), [2], 2).shared
    ref.assert_same(pick(after, ALL), ref.arrays(expected), 1e-14)


def linear(seed=0):
    """Return clients with squared errors, and for each of them its inputs with a column of ones and its targets."""
    rng = np.random.default_rng(seed)
    clients, rows = {}, []
    for i, size in enumerate((12, 7, 20)):
        x = rng.normal(size=(size, 4))
        y = x @ rng.normal(size=4) + i
        clients[f"client-{i}"] = (x, y, x[:2], y[:2])
        rows.append((np.hstack([x, np.ones((size, 1))]), y))
    return Federation.from_arrays(clients, regression=True), rows


def with_weights(shared, w):
    w = torch.from_numpy(w)
    return {**shared, "head.weight": w[None, :-1].clone(), "head.bias": w[-1:].clone()}


def weights_in(tree, prefix=""):
    return torch.cat([tree[f"{prefix}head.weight"][0], tree[f"{prefix}head.bias"]]).numpy()


@pytest.mark.parametrize("tau", [1, 7])
def test_the_minimum_of_the_objective_is_a_fixed_point_whatever_tau(tau):
    """FedProx leaves it, because clients step along their own gradients."""
    federation, rows = linear()
    x, y = (np.concatenate(part) for part in zip(*rows, strict=True))
    best = np.linalg.lstsq(x, y, rcond=None)[0]
    moved = {}
    for method in (FedDANE(tau=tau, eta=0.05, mu=0.5), FedProx(tau=tau, eta=0.05, mu=0.5)):
        setup = ref.setup(method, federation, LogReg())
        shared = with_weights(method.init_shared(setup.task), best)
        shared = play(setup, shared, [0, 1, 2], 1).shared if isinstance(method, FedDANE) else shared
        moved[type(method)] = weights_in(play(setup, shared, [0, 2], 2).shared) - best
    np.testing.assert_allclose(moved[FedDANE], 0, atol=1e-12)
    assert np.abs(moved[FedProx]).max() > 1e-3


def test_an_exact_local_minimizer_is_a_newton_step_with_the_clients_own_hessian():
    """For squared errors: w_i = w - (H_i + μ)⁻¹ g, from which the method has its name."""
    federation, rows = linear()
    setup = ref.setup(FedDANE(tau=3000, eta=0.1, mu=0.5), federation, LogReg())
    w = np.linspace(-1, 1, 5)
    shared = play(setup, with_weights(setup.method.init_shared(setup.task), w), [0, 1], 1).shared
    g = weights_in(shared, ".g.")
    each = [2 * x.T @ (x @ w - y) / len(y) for x, y in rows]
    np.testing.assert_allclose(g, (12 * each[0] + 7 * each[1]) / 19, atol=1e-12)
    after = weights_in(play(setup, shared, [2], 2).shared)
    x, y = rows[2]
    H = 2 * x.T @ x / len(y)
    np.testing.assert_allclose(after, w - np.linalg.solve(H + 0.5 * np.eye(5), g), atol=1e-9)


def test_what_travels_and_what_it_costs_in_each_half():
    setup = ref.setup(FedDANE(tau=5, batch_size=2))
    shared, data = setup.method.init_shared(setup.task), setup.data(0, "train", 1)
    for index, names, passes in (
        (1, {f".g.{name}" for name in ALL}, Passes(5, 1, 1, 1)),
        # five steps on batches of 2, 2, 1, 2, 2 examples, and one pass over all five
        (2, set(ALL), Passes(pytest.approx((2 + 2 + 1 + 2 + 2 + 5) / 6), 6, 6, 6)),
    ):
        rnd = ref.announced(setup, 2, index)
        reply = setup.method.local_update(setup.task, shared, {}, data, rnd)
        assert reply.tensors.keys() == names
        assert setup.method.passes(5, rnd) == passes
