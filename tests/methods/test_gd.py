"""GD: rounds by hand in NumPy, and its step size by theory."""

import numpy as np
import pytest

import laboratory as lab
import reference as ref
from coterie.core.method import Passes
from coterie.errors import UserError
from coterie.methods import GD


def test_two_rounds_by_hand():
    """All clients take part, then two. Clients have equal weights, though their sizes are 5, 3, 8 and 1."""
    setup = ref.setup(GD(gamma=0.3, mu=0.2))
    shared, store, f = setup.task.shared_model(), ref.store(setup), lab.net_gradients(setup, 0.2)
    x = lab.vector(shared)
    for index, cohort in enumerate(([0, 1, 2, 3], [2, 3]), 1):
        x = x - 0.3 * np.mean([f[i](x) for i in cohort], axis=0)
        shared = ref.play(setup, shared, {}, store, cohort, ref.announced(setup, len(cohort), index)).shared
        np.testing.assert_allclose(lab.vector(shared), x, rtol=0, atol=1e-14)


def test_the_loss_that_is_told_has_no_regularization():
    setup = ref.setup(GD(mu=0.5))
    shared = setup.task.shared_model()
    losses = [ref.loss_and_gradient(ref.arrays(shared), *ref.examples(setup, i))[0] for i in range(4)]
    played = ref.play(setup, shared, {}, ref.store(setup), [0, 1, 2, 3], ref.announced(setup, 4))
    assert played.loss == pytest.approx(np.mean(losses), rel=1e-12)


@pytest.mark.parametrize("gamma", ["1/L", "1/trace"])
def test_the_step_by_theory_is_one_over_the_mean_of_the_clients_constants(gamma):
    setup, f = lab.uneven(GD(gamma=gamma, mu=0.3))
    spectra = [np.linalg.eigvalsh(q.H) for q in f]
    L = [s[-1] if gamma == "1/L" else (s - 0.3).sum() + 0.3 for s in spectra]
    assert setup.method.gamma == pytest.approx(1 / np.mean(L), rel=1e-12)


def test_it_converges_as_fast_as_theory_says():
    """f(x^t) - f* <= (1 - mu/L)^t (f(x^0) - f*), with L the mean of L_i."""
    setup, f = lab.least_squares(GD(gamma="1/L", mu=0.3), mu=0.1)
    H, b = sum(q.H for q in f) / 3, sum(q.b for q in f) / 3
    best, rate = np.linalg.solve(H, b), 1 - np.linalg.eigvalsh(H)[0] * setup.method.gamma
    start = lab.vector(setup.task.initial, names=lab.LINEAR) - best
    for rnd, shared, _ in lab.play(setup, 40):
        away = lab.vector(shared, names=lab.LINEAR) - best
        assert away @ H @ away <= rate**rnd.index * (start @ H @ start)
    assert away @ H @ away < 1e-3 * (start @ H @ start)


def test_theory_is_for_linear_models():
    with pytest.raises(UserError, match="linear models only"):
        ref.setup(GD(gamma="1/L"))


def test_a_visit_is_one_pass_each_way():
    assert GD().passes(7, ref.announced(ref.setup(GD()), 1)) == Passes(7, 1, 1, 1)
