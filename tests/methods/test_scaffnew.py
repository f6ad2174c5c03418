"""Scaffnew: rounds by hand in NumPy, its coin, its limits."""

import numpy as np
import pytest

import laboratory as lab
import reference as ref
from coterie.core.tree import shift
from coterie.errors import UserError
from coterie.methods import GD, Scaffnew


def test_rounds_by_hand():
    """All clients take part, then some, then others. Each keeps its own control variate."""
    setup = ref.setup(Scaffnew(gamma=0.2, p=0.4, mu=0.1))
    cohorts = [[0, 1, 2, 3], [0, 2], [1, 2, 3], [3]]
    rounds = [(ref.announced(setup, 4, index).steps, cohort) for index, cohort in enumerate(cohorts, 1)]
    assert len({steps for steps, _ in rounds}) > 1
    x = lab.vector(setup.task.initial)
    expected = lab.scafflix(lab.net_gradients(setup, 0.1), x, [x] * 4, [1.0] * 4, [0.2] * 4, 0.4, rounds)
    *_, (_, shared, store) = lab.play(setup, 4, lambda index: cohorts[index - 1])
    np.testing.assert_allclose(lab.vector(shared), expected.x, rtol=0, atol=1e-13)
    for i in range(4):
        np.testing.assert_allclose(lab.vector(store[i], "h"), expected.h[i], rtol=0, atol=1e-13)
        assert store[i].keys() == ref.store(setup)[i].keys()  # it keeps nothing else


def test_with_p_one_it_is_gd():
    after = []
    for method in (Scaffnew(gamma=0.3, p=1.0, mu=0.1), GD(gamma=0.3, mu=0.1)):
        *_, (_, shared, _) = lab.play(ref.setup(method), 6)
        after.append(lab.vector(shared))
    np.testing.assert_allclose(after[0], after[1], rtol=0, atol=1e-13)


def test_right_after_its_steps_a_client_is_where_they_led():
    setup = ref.setup(Scaffnew(gamma=0.2, p=0.4))
    shared, f = setup.task.shared_model(), lab.net_gradients(setup)[0]
    rnd, x = ref.announced(setup, 4), lab.vector(shared)
    reply = setup.method.local_update(setup.task, shared, ref.store(setup)[0], setup.data(0, "train", 1), rnd)
    for _ in range(rnd.steps):
        x = x - 0.2 * f(x)
    seen = setup.method.personal_params(setup.task, shift(shared, reply.tensors), reply.personal)
    np.testing.assert_allclose(lab.vector(seen), x, rtol=0, atol=1e-14)


def test_it_converges_and_so_do_the_control_variates():
    setup, f = lab.least_squares(Scaffnew(gamma="1/L", p=0.3))
    best = np.linalg.solve(sum(q.H for q in f), sum(q.b for q in f))
    *_, (_, shared, store) = lab.play(setup, 100)
    np.testing.assert_allclose(lab.vector(shared, names=lab.LINEAR), best, rtol=0, atol=1e-4)
    for i in range(3):
        h = lab.vector(store[i], "h", lab.LINEAR)
        np.testing.assert_allclose(h, f[i].gradient(best), rtol=0, atol=1e-3)
        assert np.abs(h).max() > 0.01


def test_the_step_and_the_coin_by_theory():
    setup, f = lab.uneven(Scaffnew(gamma="1/L", p="optimal", mu=0.3))
    spectra = [np.linalg.eigvalsh(q.H) for q in f]
    gamma = 1 / max(s[-1] for s in spectra)
    assert setup.method.gamma == pytest.approx(gamma, rel=1e-12)
    assert setup.method.p == pytest.approx(np.sqrt(gamma * min(s[0] for s in spectra)), rel=1e-12)
    setup, _ = lab.uneven(Scaffnew(gamma=0.01, p="optimal", mu=0.3))
    assert setup.method.gamma == 0.01
    assert setup.method.p == pytest.approx(np.sqrt(0.01 * min(s[0] for s in spectra)), rel=1e-12)


def test_no_optimal_coin_without_strong_convexity():
    with pytest.raises(UserError, match=r"set method.mu"):
        lab.logistic(Scaffnew(gamma="1/L", p="optimal"), 0.0)


def test_minibatches_of_everything_are_everything():
    after = []
    for batch_size in (0, 8, 2):
        *_, (_, shared, _) = lab.play(ref.setup(Scaffnew(gamma=0.2, p=0.5, batch_size=batch_size)), 3)
        after.append(lab.vector(shared))
    np.testing.assert_array_equal(after[0], after[1])
    assert not np.allclose(after[0], after[2])
