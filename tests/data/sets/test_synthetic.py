import time

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from coterie.data.examples import Examples
from coterie.data.partition.natural import Natural
from coterie.data.sets.synthetic import Synthetic
from coterie.errors import UserError


def sizes(data: Examples) -> np.ndarray:
    assert data.groups is not None
    number = len(data.groups.names)
    return np.bincount(data.groups.train, minlength=number) + np.bincount(data.groups.test, minlength=number)


def own(data: Examples, client: int) -> tuple[np.ndarray, np.ndarray]:
    assert data.groups is not None
    mine = data.groups.train == client
    return data.x_train[mine], data.y_train[mine]


def test_shapes_and_a_quarter_of_each_client_to_test() -> None:
    data = Synthetic(clients=7, examples=10, sizes="equal", features=5, classes=4).load()
    assert data.groups is not None
    assert (data.x_train.shape, data.x_test.shape, data.labels) == ((56, 5), (14, 5), (0, 1, 2, 3))
    assert (data.x_train.dtype, data.y_train.dtype) == (np.float32, np.int64)
    assert np.bincount(data.groups.train).tolist() == [8] * 7
    assert np.bincount(data.groups.test).tolist() == [2] * 7
    assert data.groups.names == tuple("0123456")


def test_sizes_follow_a_power_law() -> None:
    """P(more than t times the minimum) = t^-2: a quarter has twice the minimum, a hundredth ten times."""
    found = sizes(Synthetic(clients=20_000, examples=40, features=1, classes=2).load())
    assert found.min() == 20
    assert abs(found.mean() / 40 - 1) < 0.03
    assert abs((found >= 40).mean() - 1 / 4) < 0.02
    assert abs((found >= 200).mean() - 1 / 100) < 0.003
    assert abs(np.median(found) / 40 - 0.71) < 0.02


def test_inputs_have_the_covariance_of_the_paper() -> None:
    data = Synthetic(clients=20, examples=4000, sizes="equal", features=8).load()
    covariance = np.mean([np.cov(own(data, client)[0].T) for client in range(20)], axis=0)
    np.testing.assert_allclose(covariance, np.diag(np.arange(1, 9) ** -1.2), atol=0.02)


@pytest.mark.parametrize("beta", [0.0, 0.5, 4.0])
def test_beta_is_the_variance_of_where_clients_are(beta: float) -> None:
    data = Synthetic(clients=3000, examples=40, sizes="equal", beta=beta, features=30).load()
    centres = data.x_train.reshape(3000, 30, 30).mean(axis=1)  # (client, feature): B_k + N(0, 1) + a little
    assert abs(centres.var(axis=1, ddof=1).mean() - 1) < 0.03
    assert abs(centres.mean(axis=1).var() - (beta + 1 / 30)) < 0.1 * beta + 0.01


def test_each_client_has_a_linear_model_of_its_own() -> None:
    data = Synthetic(clients=10, examples=800, sizes="equal", features=3, classes=3, alpha=0.0, beta=0.0).load()
    right = np.zeros((10, 10))
    for client in range(10):
        x, y = own(data, client)
        if len(np.unique(y)) > 1:
            model = LogisticRegression(C=1e6, max_iter=5000).fit(x, y)
            right[client] = [model.score(*own(data, other)) for other in range(10)]
    fitted = right.diagonal() > 0
    assert fitted.sum() >= 8
    assert (right.diagonal()[fitted] > 0.99).all()
    assert right[fitted].mean() < 0.7


def test_alpha_changes_no_label() -> None:
    """u_k is added to the weights of all classes equally."""
    one, other = (Synthetic(alpha=alpha).load() for alpha in (0.0, 10.0))
    assert np.array_equal(one.x_train, other.x_train)
    assert (one.y_train == other.y_train).mean() > 0.999


def test_the_seed_decides() -> None:
    one, same, other = (Synthetic(seed=seed).load() for seed in (3, 3, 4))
    assert all(map(np.array_equal, one[:4], same[:4]))
    assert not np.array_equal(sizes(one), sizes(other))


def test_a_hundred_thousand_clients_take_seconds() -> None:
    start = time.perf_counter()
    data = Synthetic(clients=100_000, examples=4, features=20).load()
    assert time.perf_counter() - start < 30
    assert sizes(data).min() == 2
    assert len(Natural().assign(data, np.random.default_rng(0)).train) == 100_000


def test_everyone_has_an_example_at_least() -> None:
    assert sizes(Synthetic(examples=1, clients=500, features=2).load()).min() == 1


@pytest.mark.parametrize("options", [{"alpha": -1.0}, {"beta": float("nan")}, {"clients": 0}, {"sizes": "normal"}])
def test_what_it_cannot_make(options: dict[str, float]) -> None:
    with pytest.raises(UserError, match=next(iter(options))):
        Synthetic(**options)  # type: ignore[arg-type]
