import numpy as np
import pytest

from coterie.data.partition.label_ratio import LabelRatio
from coterie.errors import UserError
from partitions import labelled


def counts(negatives, positives, clients):
    y = np.random.default_rng(0).permutation(np.repeat([0, 1], [negatives, positives]))
    partition = LabelRatio(clients=clients, new_users=0.0)
    result = partition.assign(labelled(y, y, 2), np.random.default_rng(0))
    return [np.bincount(y[rows], minlength=2).tolist() for rows in result.train], result


def test_equal_sizes_with_the_papers_ratios_where_nothing_is_left_over():
    dealt, result = counts(negatives=30, positives=50, clients=4)  # (n - 1) : (n + 1)
    assert dealt == [[15, 5], [10, 10], [5, 15], [0, 20]]
    assert [own.tolist() for own in result.classes] == [[0, 1], [0, 1], [0, 1], [1]]


def test_what_is_left_over_is_dealt_by_the_same_ratios():
    assert counts(negatives=60, positives=50, clients=4)[0] == [[30, 5], [20, 10], [10, 15], [0, 20]]


def test_rounding_loses_nobody():
    dealt = np.array(counts(negatives=61, positives=53, clients=7)[0])
    i = np.arange(7)
    assert dealt.sum(axis=0).tolist() == [61, 53]
    assert (np.abs(dealt[:, 1] - 53 * (i + 1) / 28) < 1).all()
    assert (np.abs(dealt[:, 0] - 61 * (6 - i) / 21) < 1).all()


def test_it_is_for_two_classes():
    y = np.arange(30) % 3
    with pytest.raises(UserError, match=r"partition\.name = 'label-ratio' needs two classes, but the data set has 3"):
        LabelRatio().assign(labelled(y, y, 3), np.random.default_rng(0))


def test_a_single_client_is_refused():
    with pytest.raises(UserError, match="clients"):
        LabelRatio(clients=1)
