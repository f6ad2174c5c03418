"""FLIX: rounds by hand in NumPy, its limits, and how the local optima are found."""

import numpy as np
import pytest
import torch

import laboratory as lab
import reference as ref
from coterie.core.tree import shift
from coterie.errors import UserError
from coterie.methods import FLIX, GD

ALPHA = {"client-0": 0.3, "client-1": 1.0, "client-2": 0.05, "client-3": 0.0}


def optimum(f, x, steps, rate):
    for _ in range(steps):
        x = x - rate * f(x)
    return x


def test_two_rounds_by_hand():
    """As in the paper, x_i moves by γ α_i ∇f_i(x̃_i). Client 1 ignores its optimum; client 3 ignores the others."""
    setup = ref.setup(FLIX(alpha=ALPHA, tau=3, gamma=0.4, mu=0.1, optimum_rate=0.2, optimum_epochs=7))
    shared, store, f = setup.task.shared_model(), ref.store(setup), lab.net_gradients(setup, 0.1)
    x, alpha = lab.vector(shared), list(ALPHA.values())
    own = [optimum(f[i], x, 0 if i == 1 else 7, 0.2) for i in range(4)]
    for i in range(4):
        np.testing.assert_allclose(lab.vector(store[i], "optimum"), own[i], rtol=0, atol=1e-14)
    for index, cohort in enumerate(([0, 1, 2, 3], [1, 2]), 1):
        arrived = {}
        for i in cohort:
            arrived[i] = x
            for _ in range(3):
                mixed = alpha[i] * arrived[i] + (1 - alpha[i]) * own[i]
                arrived[i] = arrived[i] - 0.4 * alpha[i] * f[i](mixed)
        rnd = ref.announced(setup, len(cohort), index)
        for i in cohort:  # compare what is sent, and the model that `participants` is scored with
            reply = setup.method.local_update(setup.task, shared, store[i], setup.data(i, "train", index), rnd)
            np.testing.assert_allclose(lab.vector(reply.tensors), arrived[i] - x, rtol=0, atol=1e-13)
            seen = setup.method.personal_params(setup.task, shift(shared, reply.tensors), reply.personal)
            mixed = alpha[i] * arrived[i] + (1 - alpha[i]) * own[i]
            np.testing.assert_allclose(lab.vector(seen), mixed, rtol=0, atol=1e-13)
        x = np.mean([arrived[i] for i in cohort], axis=0)
        shared = ref.play(setup, shared, {}, store, cohort, rnd).shared
        np.testing.assert_allclose(lab.vector(shared), x, rtol=0, atol=1e-13)
    for i in range(4):
        model = setup.method.personal_params(setup.task, shared, store[i])
        np.testing.assert_allclose(lab.vector(model), alpha[i] * x + (1 - alpha[i]) * own[i], rtol=0, atol=1e-13)


def test_with_alpha_one_it_is_gd():
    after = []
    for method in (FLIX(alpha=1.0, gamma=0.3, mu=0.1), GD(gamma=0.3, mu=0.1)):
        *_, (_, shared, _) = lab.play(ref.setup(method), 5)
        after.append(lab.vector(shared))
    np.testing.assert_allclose(after[0], after[1], rtol=0, atol=1e-14)


def test_it_is_gradient_descent_on_the_objective_and_solves_it():
    alpha = {"0": 0.9, "1": 0.2, "2": 0.5}
    method = FLIX(alpha=alpha, gamma="1/L", optimum_solver="newton", optimum_tolerance=1e-13)
    setup, f = lab.least_squares(method, mu=0.1)
    best = lab.flix_solution(f, list(alpha.values()))
    x, a = lab.vector(setup.task.initial, names=lab.LINEAR), list(alpha.values())
    for rnd, shared, _ in lab.play(setup, 150):
        mixed = [a[i] * x + (1 - a[i]) * f[i].minimum() for i in range(3)]
        x = x - setup.method.gamma * np.mean([a[i] * f[i].gradient(mixed[i]) for i in range(3)], axis=0)
        if rnd.index < 5:
            np.testing.assert_allclose(lab.vector(shared, names=lab.LINEAR), x, rtol=0, atol=1e-13)
    np.testing.assert_allclose(lab.vector(shared, names=lab.LINEAR), best, rtol=0, atol=1e-4)


@pytest.mark.parametrize("alpha", [0.1, {"0": 0.1, "1": 0.1, "2": 0.02}])
def test_the_step_by_theory(alpha):
    """The step is 1 / mean(α_i² L_i)."""
    setup, f = lab.uneven(FLIX(alpha=alpha, gamma="1/L", optimum_epochs=0))
    L = [np.linalg.eigvalsh(q.H)[-1] for q in f]
    own = list(alpha.values()) if isinstance(alpha, dict) else [alpha] * len(L)
    assert setup.method.gamma == pytest.approx(1 / np.mean(np.square(own) * L), rel=1e-12)


def test_without_any_alpha_nothing_moves():
    setup, _ = lab.least_squares(FLIX(alpha=0.0, gamma="1/L", optimum_epochs=2))
    *_, (_, shared, _) = lab.play(setup, 2)
    assert all(torch.equal(shared[name], value) for name, value in setup.task.initial.items())


def test_every_client_must_have_its_alpha():
    setup = ref.setup(FLIX(alpha={"client-0": 0.5}))
    assert float(ref.store(setup)[0][".alpha"]) == 0.5
    with pytest.raises(UserError, match=r"no value for client 'client-1'"):
        ref.store(setup)[1]


def test_adaptation_goes_on_from_the_mixture():
    setup = ref.setup(FLIX(alpha=0.5, gamma=0.4, mu=0.1, optimum_epochs=3))
    shared, personal, f = setup.task.shared_model(), ref.store(setup)[2], lab.net_gradients(setup, 0.1)[2]
    x = optimum(f, lab.vector(setup.method.personal_params(setup.task, shared, personal)), 4, 0.4 * 0.25)
    adapted = setup.method.adapt(setup.task, shared, personal, setup.data(2, "train", 0), 4)
    model = setup.method.personal_params(setup.task, shared, adapted)
    np.testing.assert_allclose(lab.vector(model), x, rtol=0, atol=1e-13)


def test_minibatches_of_everything_are_everything():
    after = []
    for batch_size in (0, 8, 2):
        *_, (_, shared, _) = lab.play(ref.setup(FLIX(gamma=0.2, tau=2, optimum_epochs=2, batch_size=batch_size)), 3)
        after.append(lab.vector(shared))
    np.testing.assert_array_equal(after[0], after[1])
    assert not np.allclose(after[0], after[2])
