"""i-Scaffnew: Algorithm 2 by hand in NumPy, and its limit."""

import numpy as np
import pytest

import laboratory as lab
import reference as ref
from coterie.methods import IScaffnew, Scaffnew

COHORTS = [[0, 1, 2], [0, 2], [1], [0, 1, 2], [1, 2]]


def play(method, rounds=5, **options):
    setup, f = lab.least_squares(method, **options)
    *_, (_, shared, store) = lab.play(setup, rounds, lambda index: COHORTS[(index - 1) % 5])
    return setup, f, shared, store


def test_rounds_by_hand():
    setup, f = lab.uneven(IScaffnew(gamma="1/L", p=0.4, mu=0.1))
    L = [np.linalg.eigvalsh(q.H)[-1] for q in f]
    assert max(L) > 5 * min(L)
    rounds = [(ref.announced(setup, 3, index).steps, cohort) for index, cohort in enumerate(COHORTS, 1)]
    x = lab.vector(setup.task.initial, names=lab.LINEAR)
    gradients = [q.gradient for q in f]
    expected = lab.scafflix(gradients, x, [x] * 3, [1.0] * 3, [1 / each for each in L], 0.4, rounds)
    *_, (_, shared, store) = lab.play(setup, 5, lambda index: COHORTS[index - 1])
    np.testing.assert_allclose(lab.vector(shared, names=lab.LINEAR), expected.x, rtol=0, atol=1e-12)
    for i in range(3):
        np.testing.assert_allclose(lab.vector(store[i], "h", lab.LINEAR), expected.h[i], rtol=0, atol=1e-12)
        assert float(store[i][".gamma"]) == pytest.approx(1 / L[i], rel=1e-12)


def test_with_equal_steps_it_is_scaffnew():
    _, _, shared, store = play(IScaffnew(gamma=0.2, p=0.4, mu=0.1))
    _, _, theirs, their_store = play(Scaffnew(gamma=0.2, p=0.4, mu=0.1))
    ref.assert_same(shared, ref.arrays(theirs), 1e-14)
    for i in range(3):
        np.testing.assert_allclose(
            lab.vector(store[i], "h", lab.LINEAR), lab.vector(their_store[i], "h", lab.LINEAR), rtol=0, atol=1e-13
        )


def test_the_coin_by_theory_is_of_the_worst_conditioned_client():
    setup, f = lab.uneven(IScaffnew(gamma="1/L", p="optimal", mu=0.3))
    spectra = [np.linalg.eigvalsh(q.H) for q in f]
    assert setup.method.p == pytest.approx(np.sqrt(min(s[0] / s[-1] for s in spectra)), rel=1e-12)


def test_individual_steps_need_fewer_rounds():
    """If the L_i differ, a common step size must fit the largest of them (Figure 5)."""
    needed = []
    for method in (IScaffnew(gamma="1/L", p=0.3), Scaffnew(gamma="1/L", p=0.3)):
        setup, f = lab.uneven(method)
        best = np.linalg.solve(sum(q.H for q in f), sum(q.b for q in f))
        away = (np.abs(lab.vector(shared, names=lab.LINEAR) - best).max() for _, shared, _ in lab.play(setup, 400))
        needed.append(next(index for index, distance in enumerate(away, 1) if distance < 1e-3))
    assert 1.5 * needed[0] < needed[1]


def test_minibatches_of_everything_are_everything():
    after = []
    for batch_size in (0, 12, 4):
        _, _, shared, _ = play(IScaffnew(gamma=0.05, p=0.5, batch_size=batch_size), 3)
        after.append(lab.vector(shared, names=lab.LINEAR))
    np.testing.assert_array_equal(after[0], after[1])
    assert not np.allclose(after[0], after[2])
