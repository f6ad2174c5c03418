"""Parts common to all partitions: new users and the validation split."""

import numpy as np
import pytest

from coterie.data.federation import Federation
from coterie.data.partition.classes import Classes
from partitions import labelled

Y = np.arange(400) % 5


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5])
def test_validation_is_a_share_of_each_class_of_each_client(share):
    examples = labelled(Y, Y[:50], 5)
    whole = Classes(clients=10).assign(examples, np.random.default_rng(0))
    cut = Classes(clients=10, validation=share).assign(examples, np.random.default_rng(0))
    for all_rows, train, validation in zip(whole.train, cut.train, cut.validation, strict=True):
        assert sorted([*train, *validation]) == all_rows.tolist()
        for label in np.unique(Y[all_rows]):
            size = (Y[all_rows] == label).sum()
            assert (Y[validation] == label).sum() == int(share * size + 1e-9)
    assert [rows.tolist() for rows in cut.test] == [rows.tolist() for rows in whole.test]


def test_a_class_with_one_row_stays_in_training():
    y = np.array([0, 1, 1, 1, 1, 1, 1, 1])
    cut = Classes(clients=1, classes_per_client=2, new_users=0, validation=0.9).assign(
        labelled(y, y, 2), np.random.default_rng(0)
    )
    assert 0 in y[cut.train[0]]
    assert len(cut.validation[0]) == 6


def test_the_federation_has_the_split_only_where_it_was_asked_for():
    examples = labelled(Y, Y[:50], 5)
    for share, splits in ((0.0, {"train", "test"}), (0.2, {"train", "test", "validation"})):
        assignment = Classes(clients=4, validation=share).assign(examples, np.random.default_rng(0))
        assert Federation.assemble(examples, assignment).splits.keys() == splits


def test_names_of_clients_are_kept():
    examples = labelled(Y, Y[:50], 5)
    assignment = (
        Classes(clients=2, classes_per_client=5)
        .assign(examples, np.random.default_rng(0))
        ._replace(names=("anna", "bert"))
    )
    assert Federation.assemble(examples, assignment).ids == ("anna", "bert")
