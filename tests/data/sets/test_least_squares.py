import numpy as np
import pytest
import torch

from coterie.core.data import Data
from coterie.core.objective import Regression
from coterie.core.task import Task
from coterie.data.sets.least_squares import LeastSquares
from coterie.errors import UserError
from coterie.models.logreg import LogReg


def by_client(**options: float) -> tuple[np.ndarray, ...]:
    """Return x_train (I, n, d), y_train (I, n), and so on."""
    data = LeastSquares(**options).load()  # type: ignore[arg-type]
    assert data.groups is not None
    number = len(data.groups.names)
    assert (np.diff(data.groups.train) >= 0).all()
    return tuple(part.reshape(number, -1, *part.shape[1:]) for part in data[:4])


def solutions(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.stack([np.linalg.lstsq(A, b, rcond=None)[0] for A, b in zip(x, y, strict=True)])


@pytest.mark.parametrize(("mu", "L"), [(0.01, 1.0), (1.0, 1.0), (1e-4, 100.0), (5.0, 7.0)])
def test_the_eigenvalues_are_those_asked_for(mu: float, L: float) -> None:
    x = by_client(mu=mu, L=L, features=6, clients=4, examples=15)[0]
    assert x.shape == (4, 15, 6)
    assert x.dtype == np.float64
    eigenvalues = np.linalg.eigvalsh(x.transpose(0, 2, 1) @ x / 15)
    np.testing.assert_allclose(eigenvalues, [mu * (L / mu) ** (np.arange(6) / 5)] * 4, rtol=1e-9)
    assert np.abs(x[0] - x[1]).max() > 0.1
    np.testing.assert_allclose(x.mean(axis=1), 0, atol=1e-12)


def test_clients_differ_in_their_directions() -> None:
    x = by_client(features=3, clients=2, examples=9)[0]
    one, other = x.transpose(0, 2, 1) @ x / 9
    assert np.abs(one - other).max() > 0.05


@pytest.mark.parametrize(("mu", "L"), [(0.25, 4.0), (2.0, 3.0), (0.1, 0.5)])
def test_the_curvature_of_the_loss_with_an_intercept(mu: float, L: float) -> None:
    x, y = (torch.from_numpy(part[0]) for part in by_client(mu=mu, L=L, features=5, examples=12, clients=1)[:2])
    task = Task(LogReg().build((5,), 1).double(), "head", x[:1], objective=Regression())
    yes = torch.ones(12, dtype=torch.bool)
    data = Data(x, y, yes, yes[:1], torch.zeros(()))
    point = torch.zeros(6, dtype=torch.float64)
    loss = lambda w: task.loss({"head.weight": w[None, :5], "head.bias": w[5:]}, data)[0]  # noqa: E731
    eigenvalues = torch.linalg.eigvalsh(torch.func.jacrev(torch.func.jacrev(loss))(point))
    assert eigenvalues[0].item() == pytest.approx(2 * min(mu, 1))
    assert eigenvalues[-1].item() == pytest.approx(2 * max(L, 1))


def test_without_noise_every_client_has_an_exact_solution() -> None:
    x, y, x_test, y_test = by_client(noise=0.0, clients=3)
    w = solutions(x, y)
    np.testing.assert_allclose((x @ w[:, :, None])[:, :, 0], y, atol=1e-10)
    np.testing.assert_allclose((x_test @ w[:, :, None])[:, :, 0], y_test, atol=1e-8)
    assert np.abs(w[0] - w[1]).max() > 0.1


def test_without_heterogeneity_it_is_everybodys() -> None:
    x, y, _, _ = by_client(noise=0.0, heterogeneity=0.0, clients=3)
    w = solutions(x, y)
    np.testing.assert_allclose(w, [w[0]] * 3, atol=1e-10)
    assert np.linalg.norm(w[0]) > 0.1


def test_heterogeneity_and_noise_are_deviations() -> None:
    x, y, _, _ = by_client(noise=0.0, heterogeneity=3.0, clients=2000, features=4, examples=6)
    w = solutions(x, y)
    assert ((w - w.mean(axis=0)) ** 2).sum(axis=1).mean() == pytest.approx(9, rel=0.1)
    clean, noisy = (by_client(noise=noise, clients=300)[1::2] for noise in (0.0, 0.5))
    for before, after in zip(clean, noisy, strict=True):
        assert (after - before).std() == pytest.approx(0.5, rel=0.05)


def test_test_inputs_have_the_same_covariance() -> None:
    x, _, x_test, _ = by_client(features=3, clients=2, examples=60_000)
    assert x_test.shape == (2, 20_000, 3)
    for train, test in zip(x, x_test, strict=True):
        np.testing.assert_allclose(np.cov(test.T), train.T @ train / 60_000, atol=0.03)


def test_the_seed_decides() -> None:
    one, same, other = (by_client(seed=seed) for seed in (1, 1, 2))
    assert all(map(np.array_equal, one, same))
    assert not np.array_equal(one[0], other[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mu": 2.0}, r"data\.mu = 2\.0 must not be larger than data\.L = 1\.0"),
        ({"examples": 20}, r"data\.examples = 20 must be larger than data\.features = 20"),
    ],
)
def test_what_does_not_fit_together(options: dict[str, float], message: str) -> None:
    with pytest.raises(UserError, match=message):
        by_client(**options)


@pytest.mark.parametrize("options", [{"mu": 0.0}, {"L": float("inf")}, {"features": 1}, {"noise": -0.1}])
def test_what_it_cannot_make(options: dict[str, float]) -> None:
    with pytest.raises(UserError, match=next(iter(options))):
        LeastSquares(**options)  # type: ignore[arg-type]
