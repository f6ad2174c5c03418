"""Partitions with equal sizes or different sizes only: iid, quantity, contiguous."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.data.partition.contiguous import Contiguous
from coterie.data.partition.iid import IID
from coterie.data.partition.quantity import Quantity
from coterie.errors import UserError
from partitions import labelled

Y = np.arange(10_000) % 10


def assign(partition, y=Y, y_test=Y, seed=0):
    return partition.assign(labelled(y, y_test, int(max(y.max(), y_test.max())) + 1), np.random.default_rng(seed))


def sizes(result):
    return np.array([len(rows) for rows in result.train])


@pytest.mark.parametrize("scheme", [IID, Contiguous])
@given(clients=st.integers(1, 60), more=st.integers(0, 100))
def test_equal_sizes_differ_by_one_at_most(scheme, clients, more):
    dealt = sizes(assign(scheme(clients=clients), y=Y[: clients + more]))
    assert dealt.sum() == clients + more
    assert dealt.max() - dealt.min() <= 1


def test_iid_clients_have_the_mix_of_all():
    result = assign(IID(clients=10))
    for split in (result.train, result.test):
        counts = np.array([np.bincount(Y[rows]) for rows in split])
        # 1000 rows of a class go to 10 clients: 100 each, with a standard deviation of 9.
        assert np.abs(counts - 100).max() < 5 * 9.5
        assert counts.std() > 2


def test_blocks_are_those_of_the_file():
    y, y_test = np.repeat([0, 1, 2], [4, 3, 4]), np.array([2, 0, 1, 0, 2, 2, 0, 1])
    result = assign(Contiguous(clients=3), y=y, y_test=y_test)
    assert [rows.tolist() for rows in result.train] == [rows.tolist() for rows in np.array_split(np.arange(11), 3)]
    assert [own.tolist() for own in result.classes] == [[0], [1, 2], [2]]
    assert result.test[0].tolist() == [1, 3, 6]
    # Client 1 has a quarter of the training rows of class 2, so it gets one or none of the 3 test rows.
    assert result.test[1].tolist() in ([2, 7], [0, 2, 7])


@settings(deadline=None)
@given(
    clients=st.integers(1, 40),
    minimum=st.integers(1, 10),
    more=st.integers(0, 200),
    beta=st.sampled_from([1e-6, 0.1, 0.5, 1e6]),
    seed=st.integers(0, 2**32 - 1),
)
def test_quantities_add_up_and_keep_the_minimum(clients, minimum, more, beta, seed):
    y = Y[: clients * minimum + more]
    dealt = sizes(assign(Quantity(clients=clients, minimum=minimum, beta=beta), y=y, seed=seed))
    assert dealt.sum() == len(y)
    assert dealt.min() >= minimum


def test_beta_decides_how_much_sizes_differ():
    tiny, large = (sizes(assign(Quantity(clients=20, beta=beta))) for beta in (1e-6, 1e6))
    assert np.sort(tiny)[-2:].tolist() == [1, 10_000 - 19]
    assert np.abs(large - 500).max() <= 5


def test_quantities_have_the_moments_of_the_distribution():
    shares = np.concatenate([sizes(assign(Quantity(clients=10), seed=seed)) / len(Y) for seed in range(300)])
    assert shares.var() == pytest.approx(0.1 * 0.9 / (10 * 0.5 + 1), rel=0.1)


def test_large_clients_of_different_quantity_have_the_mix_of_all():
    y = np.sort(Y)
    result = assign(Quantity(clients=5, beta=5.0), y=y, y_test=y)
    for rows in (*result.train, *result.test):
        assert np.abs(np.bincount(y[rows], minlength=10) / len(rows) - 0.1).max() < 5 * np.sqrt(0.09 / len(rows))


def test_too_little_for_the_minimum_names_both_keys():
    with pytest.raises(UserError, match=r"partition\.clients or partition\.minimum"):
        assign(Quantity(clients=101, minimum=100))


@pytest.mark.parametrize("scheme", [IID, Contiguous, Quantity])
def test_a_million_rows_over_ten_thousand_clients(scheme):
    y = np.arange(1_000_000) % 100
    assert sizes(assign(scheme(clients=10_000), y=y, y_test=y)).sum() == 1_000_000
