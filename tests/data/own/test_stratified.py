import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie import streams
from coterie.data.own.split import split


def rng():
    return streams.generator(0, "split", client="anna")


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=120),
    st.floats(0, 0.6),
    st.floats(0, 0.39),
)
def test_every_row_goes_to_one_split_and_every_class_is_trained_on(y, test, validation):
    y = np.array(y)
    rows = split(y, {"test": test, "validation": validation}, rng())
    assert sorted(np.concatenate(list(rows.values())).tolist()) == list(range(len(y)))
    assert set(y[rows["train"]]) == set(y)
    for label, count in zip(*np.unique(y, return_counts=True), strict=True):
        for name, share in (("test", test), ("validation", validation)):
            taken = (y[rows[name]] == label).sum()
            assert taken < share * count + 1
            assert taken > share * count - 1 or (y[rows["train"]] == label).sum() == 1
    for each in rows.values():
        assert (np.diff(each) > 0).all()


def test_the_mix_of_classes_is_that_of_the_whole():
    y = np.array([0] * 40 + [1] * 20 + [2] * 4)
    rows = split(y, {"test": 0.25, "validation": 0.5}, rng())
    assert np.bincount(y[rows["test"]]).tolist() == [10, 5, 1]
    assert np.bincount(y[rows["validation"]]).tolist() == [20, 10, 2]
    assert np.bincount(y[rows["train"]]).tolist() == [10, 5, 1]


def test_what_is_left_goes_where_most_is_lost():
    y = np.array([0] * 7 + [1] * 5)
    assert np.bincount(y[split(y, {"test": 0.25}, rng())["test"]]).tolist() == [2, 1]
    assert np.bincount(1 - y[split(1 - y, {"test": 0.25}, rng())["test"]]).tolist() == [1, 2]


def test_small_classes_together_give_the_share_that_none_could_give_alone():
    y = np.repeat(np.arange(10), 2)
    rows = split(y, {"test": 0.25}, rng())
    assert len(rows["test"]) == 5
    assert len(set(y[rows["test"]])) == 5


@pytest.mark.parametrize(("y", "test"), [([4], 0), ([4, 4], 1), ([4, 5], 0), ([4, 4, 4], 1), ([1, 2, 3, 4, 5, 6], 0)])
def test_the_smallest_clients_train_first(y, test):
    rows = split(np.array(y), {"test": 0.25}, rng())
    assert len(rows["test"]) == test
    assert len(rows["train"]) == len(y) - test


def test_the_test_rows_do_not_depend_on_the_validation_share():
    y = np.arange(60) % 4
    alone = split(y, {"test": 0.2}, rng())
    both = split(y, {"test": 0.2, "validation": 0.3}, rng())
    assert alone["test"].tolist() == both["test"].tolist()


def test_it_is_a_draw():
    y = np.zeros(40)
    first, second = (split(y, {"test": 0.5}, streams.generator(seed, "split"))["test"].tolist() for seed in (0, 1))
    assert first != second
    assert first != list(range(20))
