"""pFedMe against its paper: rounds by hand in NumPy, and the Moreau envelope of quadratics, which is known."""

import numpy as np
import pytest
import torch

import reference as ref
from coterie.core.steps import minibatch
from coterie.core.tree import pick
from coterie.methods import PFedMe
from laboratory import LINEAR, least_squares, vector

ALL = ref.BODY + ref.HEAD


def proximal(w, x, y, steps, rate, lam):
    theta = w
    for _ in range(steps):
        g = ref.loss_and_gradient(theta, x, y)[1]
        theta = ref.step(theta, {name: g[name] + lam * (theta[name] - w[name]) for name in ALL}, rate, ALL)
    return theta


def test_two_rounds_by_hand():
    setup = ref.setup(PFedMe(tau=2, inner=3, beta=0.1, eta=0.2, lam=1.5, rho=0.7))
    shared, store = setup.task.shared_model(), ref.store(setup)
    w = ref.arrays(shared)
    for index, cohort in enumerate(([0, 2], [1, 2, 3]), 1):
        ends, thetas = [], {}
        for i in cohort:
            own = w
            for _ in range(2):
                thetas[i] = proximal(own, *ref.examples(setup, i), 3, 0.1, 1.5)
                own = {name: own[name] - 0.2 * 1.5 * (own[name] - thetas[i][name]) for name in ALL}
            ends.append(own)
        w = {name: 0.3 * w[name] + 0.7 * sum(end[name] for end in ends) / len(ends) for name in ALL}
        shared = ref.play(setup, shared, {}, store, cohort, ref.announced(setup, len(cohort), index)).shared
        ref.assert_same(shared, w)
        for i in cohort:
            ref.assert_same(pick(setup.method.personal_params(setup.task, shared, store[i]), ALL), thetas[i])


def test_a_local_round_stays_with_its_minibatch():
    setup = ref.setup(PFedMe(tau=2, inner=3, beta=0.1, eta=0.2, lam=1.5, batch_size=3))
    data, own = setup.data(2, "train", 1), ref.arrays(setup.task.initial)
    start = own
    for step in range(2):
        batch = minibatch(data, 3, step)
        x, y = batch.x.numpy(), batch.y.numpy()
        theta = proximal(own, x, y, 3, 0.1, 1.5)
        loss, _ = ref.loss_and_gradient(proximal(own, x, y, 2, 0.1, 1.5), x, y)
        own = {name: own[name] - 0.3 * (own[name] - theta[name]) for name in ALL}
    rnd = ref.announced(setup, 1)
    sent, numbers, kept, _ = setup.method.local_update(
        setup.task, setup.task.shared_model(), ref.store(setup)[2], data, rnd
    )
    ref.assert_same(sent, {name: own[name] - start[name] for name in ALL})
    ref.assert_same(pick(kept, ALL), theta)
    assert float(numbers["loss"]) == pytest.approx(loss, rel=1e-12)  # at the last gradient


@pytest.mark.parametrize("lam", [0.5, 4.0])
def test_the_proximal_step_solves_its_problem(lam):
    """On a quadratic theta is (H + lam)^-1 (b + lam w), and the error shrinks by |1 - beta (H + lam)| per step.

    The step on w follows the gradient of the envelope.
    """
    beta = 0.1
    for steps in (5, 400):
        setup, problems = least_squares(PFedMe(tau=1, inner=steps, beta=beta, eta=0.3, lam=lam))
        w, shared = vector(setup.task.initial, names=LINEAR), setup.task.shared_model()
        bent = problems[1].H + lam * np.eye(len(w))
        best = np.linalg.solve(bent, problems[1].b + lam * w)
        data, rnd = setup.data(1, "train", 1), ref.announced(setup, 1)
        sent, _, kept, _ = setup.method.local_update(setup.task, shared, ref.store(setup)[1], data, rnd)
        worst = np.abs(1 - beta * np.linalg.eigvalsh(bent)).max()
        error = np.linalg.norm(vector(kept, names=LINEAR) - best)
        assert worst < 1
        assert error <= worst**steps * np.linalg.norm(w - best) + 1e-12
    np.testing.assert_allclose(vector(sent, names=LINEAR), -0.3 * lam * (w - best), rtol=0, atol=1e-9)
    np.testing.assert_allclose(lam * (w - best), problems[1].gradient(best), rtol=0, atol=1e-9)


def test_who_was_never_visited_uses_the_shared_model_and_adapts_around_it():
    setup = ref.setup(PFedMe(beta=0.1, lam=1.5))
    shared = {name: value + 0.1 for name, value in setup.task.shared_model().items()}
    data, w = setup.data(0, "train", 0), ref.arrays(shared)
    ref.assert_same(pick(setup.method.personal_params(setup.task, shared, ref.store(setup)[0]), ALL), w, 0)
    visited = {**ref.store(setup)[0], ".visited": torch.tensor(True)}
    for personal in (ref.store(setup)[0], visited):
        adapted = setup.method.adapt(setup.task, shared, personal, data, 4)
        after = setup.method.personal_params(setup.task, shared, adapted)
        ref.assert_same(pick(after, ALL), proximal(w, *ref.examples(setup, 0), 4, 0.1, 1.5))
