"""Shares as whole numbers of rows, and test rows that match training rows."""

import logging

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from coterie.data.partition.dealing import clients_of, complete, portions, rows_of
from partitions import labelled

weights = arrays(np.int64, st.tuples(st.integers(1, 12), st.integers(1, 4)), elements=st.integers(0, 50))


@given(weights, st.integers(0, 1000), st.floats(0, 1, exclude_max=True))
def test_all_is_dealt_within_one_of_the_exact_share(weights, total, offset):
    dealt = portions(weights, np.full(weights.shape[1], total), np.full(weights.shape[1], offset))
    sums = weights.sum(axis=0)
    exact = weights * total / np.maximum(sums, 1)
    assert (dealt.sum(axis=0) == np.where(sums > 0, total, 0)).all()
    assert (np.abs(dealt - exact) < 1 + 1e-9).all()
    assert (dealt >= 0).all()
    assert (dealt[weights == 0] == 0).all()


@given(st.lists(st.floats(0, 1), min_size=1, max_size=50).filter(any), st.integers(0, 10**6))
def test_shares_that_are_not_whole_are_dealt_in_full_too(shares, total):
    for offset in (0.0, 0.5, 1 - 2**-53):
        dealt = portions(np.array(shares), total, offset)
        assert dealt.sum() == total
        assert (dealt >= 0).all()


def test_a_uniform_offset_is_fair():
    offsets = (np.arange(1000) + 0.5) / 1000
    dealt = portions(np.tile([[1], [2], [7]], 1000), np.full(1000, 2), offsets)
    np.testing.assert_allclose(dealt.mean(axis=1), [0.2, 0.4, 1.4], atol=1e-3)


def test_rows_by_hand():
    y = np.array([0, 1, 0, 1, 0, 2])
    client_of_row = clients_of(y, np.array([[1, 2, 0], [2, 0, 0]]), np.array([5, 4, 3, 2, 1, 0]))
    assert client_of_row.tolist() == [1, 0, 1, 0, 0, -1]
    assert [rows.tolist() for rows in rows_of(client_of_row, 3)] == [[1, 3, 4], [0, 2], []]


def test_test_rows_have_the_mix_of_the_training_rows(caplog):
    client_of_row = np.repeat([0, 0, 1, 1], [30, 10, 10, 90])
    y_train, y_test = np.repeat([0, 1, 0, 1], [30, 10, 10, 90]), np.repeat([0, 1, 2], [8, 20, 3])
    examples, nobody_new = labelled(y_train, y_test, 3), np.zeros(2, dtype=np.bool_)
    with caplog.at_level(logging.INFO, "coterie"):
        result = complete(client_of_row, examples, nobody_new, np.random.default_rng(0))
    assert [np.bincount(y_test[rows]).tolist() for rows in result.test] == [[6, 2], [2, 18]]
    assert "3 test examples are omitted" in caplog.text


@pytest.mark.parametrize("in_file_order", [True, False])
def test_test_rows_are_shuffled_unless_their_order_matters(in_file_order):
    y = np.zeros(100, dtype=np.int64)
    client_of_row = np.repeat([0, 1], 50)
    result = complete(
        client_of_row, labelled(y, y, 1), np.zeros(2, np.bool_), np.random.default_rng(0), in_file_order=in_file_order
    )
    assert (result.test[0].tolist() == list(range(50))) == in_file_order


def test_nobody_is_favoured_where_test_rows_are_few():
    one_each, nobody_new = labelled(np.zeros(4, np.int64), np.zeros(1, np.int64), 1), np.zeros(4, np.bool_)
    winners = [
        [len(rows) for rows in complete(np.arange(4), one_each, nobody_new, np.random.default_rng(seed)).test]
        for seed in range(400)
    ]
    # 100 each, with a standard deviation of 8.7.
    assert np.abs(np.sum(winners, axis=0) - 100).max() < 4 * 8.7
