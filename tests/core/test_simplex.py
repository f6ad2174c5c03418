"""Quadratic programmes on the simplex, against a search through all faces."""

import numpy as np
import pytest
import torch

from coterie.core.steps.simplex import least_on_simplex
from faces import brute_force


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
@pytest.mark.parametrize("r", [1, 2, 3, 5, 7])
def test_it_finds_the_best_face(r, scale):
    rng, active = np.random.default_rng(r), 0
    for _ in range(30):
        D, V = rng.normal(size=(r, 4)) + rng.normal(size=4), rng.uniform(0.1, 2, size=r)
        P = D @ D.T + np.diag(V)
        a = least_on_simplex(scale * torch.from_numpy(P)).numpy()
        assert a.min() >= 0
        assert a.sum() == pytest.approx(1, abs=1e-15)
        np.testing.assert_allclose(a, brute_force(P), rtol=0, atol=1e-9)
        active += (a == 0).sum()
    assert r < 3 or active > 10, "weights that are zero are part of the problem"


def test_many_variables_satisfy_the_optimality_conditions():
    """The slope is the same for all weights in use, and not smaller for any other."""
    rng = np.random.default_rng(0)
    D = rng.normal(size=(100, 500)) + 2 * rng.normal(size=500)
    D = D - D[0]
    P = D @ D.T + np.diag(rng.uniform(0.5, 1.5, size=100)) * 500
    a = least_on_simplex(torch.from_numpy(P)).numpy()
    slope = P @ a
    np.testing.assert_allclose(slope[a > 0], a @ slope, rtol=1e-9)
    assert (slope[a == 0] >= a @ slope - 1e-9).all()


def test_the_known_solution_without_active_constraints():
    """Of a diagonal matrix, the weights are proportional to the inverse of the diagonal."""
    V = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    torch.testing.assert_close(least_on_simplex(V.diag()), 1 / V / (1 / V).sum(), rtol=1e-10, atol=0)


@pytest.mark.parametrize("P", [torch.zeros(4, 4), torch.full((4, 4), 3.0), torch.full((4, 4), 3.0).add(1e-20)])
def test_weights_are_even_if_all_are_as_good(P):
    torch.testing.assert_close(least_on_simplex(P), torch.full((4,), 0.25), rtol=0, atol=1e-3)


def test_the_type_is_kept():
    assert least_on_simplex(torch.eye(2)).dtype == torch.float32
