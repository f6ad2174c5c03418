import logging

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.data.partition.dirichlet import Dirichlet
from coterie.errors import UserError
from partitions import labelled

Y = np.arange(10_000) % 10


def mixes(split, y, num_classes=10):
    """Return the share of each class among the rows of each client, (I, C)."""
    counts = np.array([np.bincount(y[rows], minlength=num_classes) for rows in split])
    return counts / counts.sum(axis=1, keepdims=True)


def assign(seed=0, y=Y, **options):
    return Dirichlet(**options).assign(labelled(y, y, int(y.max()) + 1), np.random.default_rng(seed))


def test_large_alpha_is_nearly_iid():
    result = assign(clients=10, alpha=1e5)
    assert np.abs(mixes(result.train, Y) - 0.1).max() < 0.01
    assert all(abs(len(rows) - 1000) < 20 for rows in result.train)


def test_tiny_alpha_is_one_client_a_class():
    result = assign(clients=4, alpha=1e-6, minimum=1)
    drawn = [np.bincount(Y[rows], minlength=10) for rows in result.train]
    # Each class is held by one client, except for rows given to clients that drew none.
    assert all(np.sort(column)[-1] >= 990 for column in np.array(drawn).T)


def test_smaller_alpha_is_fewer_classes():
    held = [np.mean([len(own) for own in assign(clients=50, alpha=alpha).classes]) for alpha in (0.01, 0.1, 1, 100)]
    assert held == sorted(held)
    assert held[0] < 3
    assert held[-1] == 10


def test_shares_have_the_moments_of_the_distribution():
    clients, alpha, draws = 5, 0.7, 200
    shares = np.concatenate(
        [
            [
                np.bincount(Y[rows], minlength=10) / 1000
                for rows in assign(seed, clients=clients, alpha=alpha, minimum=1).train
            ]
            for seed in range(draws)
        ]
    )
    # Var = (1/I) (1 - 1/I) / (I alpha + 1)
    assert abs(shares.mean() - 1 / clients) < 1e-9
    assert shares.var() == pytest.approx(0.2 * 0.8 / (clients * alpha + 1), rel=0.05)


@pytest.mark.parametrize("alpha", [0.05, 0.5, 5.0])
def test_train_validation_and_test_have_one_mix(alpha):
    result = assign(clients=20, alpha=alpha, minimum=100, validation=0.3)
    train, validation, test = (mixes(split, Y) for split in (result.train, result.validation, result.test))
    # The numbers of each class are rounded; there are at least 70 rows.
    assert np.abs(train - test).max() < 0.05
    assert np.abs(train - validation).max() < 0.15


@settings(deadline=None, max_examples=50)
@given(
    clients=st.integers(1, 40),
    minimum=st.integers(1, 8),
    slack=st.integers(0, 30),
    num_classes=st.integers(1, 9),
    alpha=st.sampled_from([1e-6, 0.01, 0.1, 1.0, 1e6]),
    seed=st.integers(0, 2**32 - 1),
)
def test_nobody_is_short_even_where_there_is_just_enough(clients, minimum, slack, num_classes, alpha, seed):
    y = np.random.default_rng(seed).integers(num_classes, size=clients * minimum + slack)
    partition = Dirichlet(clients=clients, minimum=minimum, alpha=alpha)
    result = partition.assign(labelled(y, y, num_classes), np.random.default_rng(seed))
    assert min(map(len, result.train)) >= minimum
    assert sum(map(len, result.train)) == len(y)


def test_those_who_were_short_stay_skewed(caplog):
    with caplog.at_level(logging.INFO, "coterie"):
        result = assign(clients=500, alpha=1e-6, minimum=15)
    assert "of 500 clients drew fewer than 15" in caplog.text
    given_rows = [own for rows, own in zip(result.train, result.classes, strict=True) if len(rows) == 15]
    assert len(given_rows) > 300
    assert np.mean([len(own) for own in given_rows]) < 1.5
    # Clients ask for different classes, so rows were not all taken from one class.
    assert len(np.unique([own[0] for own in given_rows])) == 10


def test_those_who_were_short_are_given_more_of_what_they_drew():
    result = assign(clients=500, alpha=0.1, minimum=15)
    largest = [np.bincount(Y[rows]).max() / 15 for rows in result.train if len(rows) == 15]
    # Rows of the least drawn class would bring it to two thirds.
    assert len(largest) > 200
    assert np.mean(largest) > 0.78


def test_it_draws_again_before_it_moves_rows(caplog):
    # About one draw in four leaves a client with fewer than 350; ten in a row almost never do.
    with caplog.at_level(logging.INFO, "coterie"):
        results = [assign(seed, clients=10, alpha=0.5, minimum=350) for seed in range(30)]
    assert "drew fewer" not in caplog.text
    assert all(min(map(len, result.train)) >= 350 for result in results)


def test_who_has_enough_is_left_alone(caplog):
    with caplog.at_level(logging.INFO, "coterie"):
        assign(clients=5, alpha=10.0)
    assert "drew fewer" not in caplog.text


def test_too_little_for_the_minimum_names_both_keys():
    with pytest.raises(UserError, match=r"10010.*10000.*partition\.clients or partition\.minimum"):
        assign(clients=1001, minimum=10)


@pytest.mark.parametrize("wrong", [{"alpha": 0.0}, {"alpha": -1.0}, {"alpha": float("inf")}, {"minimum": 0}])
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(UserError):
        Dirichlet(**wrong)


def test_a_million_rows_over_ten_thousand_clients():
    y = np.arange(1_000_000) % 100
    result = assign(y=y, clients=10_000, alpha=0.1, minimum=20)
    assert sum(map(len, result.train)) == sum(map(len, result.test)) == 1_000_000
    assert min(map(len, result.train)) >= 20
