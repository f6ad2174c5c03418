"""The partition of consecutive classes: counts of the data sets that it was made for, and its promises."""

import numpy as np
import pytest

from coterie.data.federation import Federation
from coterie.data.partition.consecutive import Consecutive
from coterie.errors import UserError
from partitions import data_for, labelled


def shaped(num_classes, train, test):
    """Examples of classes of equal size, in random order."""
    rng = np.random.default_rng(1)
    y_train, y_test = (rng.permutation(np.repeat(np.arange(num_classes), each)) for each in (train, test))
    return labelled(y_train, y_test, num_classes)


def pooled(examples, seed=23, **options):
    settings = {"clients": 100, "test": 0.3, "new_users": 0.0, **options}
    return Consecutive(**settings).assign(examples, np.random.default_rng(seed))


@pytest.mark.parametrize(
    ("num_classes", "train", "test", "sizes", "each"),
    [(10, 6000, 1000, (489, 211), 140), (100, 500, 100, (420, 180), 120)],
    ids=["fashion-mnist", "cifar-100"],
)
def test_all_clients_are_alike_on_the_data_of_the_papers(num_classes, train, test, sizes, each):
    examples = shaped(num_classes, train, test)
    result = pooled(examples)
    y = np.append(examples.y_train, examples.y_test)
    assert {(len(one), len(other)) for one, other in zip(result.train, result.test, strict=True)} == {sizes}
    holders = np.zeros(num_classes, int)
    for i in range(100):
        rows = np.append(result.train[i], result.test[i])
        own = (i + np.arange(5)) % num_classes
        assert dict(zip(*np.unique(y[rows], return_counts=True), strict=True)) == dict.fromkeys(own.tolist(), each)
        np.testing.assert_array_equal(result.classes[i], np.sort(own))
        holders[own] += 1
    assert set(holders) == {500 // num_classes}
    everything = np.sort(np.concatenate([*result.train, *result.test]))
    np.testing.assert_array_equal(everything, np.arange(len(y)))
    share_of_test = np.bincount(y[np.concatenate(result.test)]) / np.bincount(y)
    assert 0.2 < share_of_test.min() < 0.3 < share_of_test.max() < 0.4, "the cut is random within a client"
    published = [np.mean(rows >= len(examples.y_train)) for rows in result.train]
    assert min(published) > 0, "published test rows are trained on too"


def test_the_seed_decides():
    examples = shaped(10, 60, 10)
    one, again, other = (pooled(examples, seed) for seed in (0, 0, 1))
    for split in ("train", "test"):
        assert all(map(np.array_equal, getattr(one, split), getattr(again, split)))
        assert not all(map(np.array_equal, getattr(one, split), getattr(other, split)))


def test_a_federation_has_the_rows_of_both_sets():
    examples = data_for("consecutive", 12, 5, 50, seed=3)._replace(edges=None)
    result = pooled(examples, clients=12, classes_per_client=2, validation=0.2)
    federation = Federation.assemble(examples, result)
    x, y = np.append(examples.x_train, examples.x_test, axis=0), np.append(examples.y_train, examples.y_test)
    for i in range(12):
        for split, rows in zip(
            ("train", "validation", "test"), (result.train, result.validation, result.test), strict=True
        ):
            data = federation.data(i, split, "global")
            np.testing.assert_array_equal(data.x.numpy(), x[rows[i]])
            np.testing.assert_array_equal(data.y.numpy(), y[rows[i]])
    assert not np.intersect1d(np.concatenate(result.train), np.concatenate(result.validation)).size
    assert set(map(len, result.validation)) != {0}


def test_a_class_that_is_used_up_leaves_its_rows_to_nobody_else_and_all_rows_are_dealt():
    """Class 0 has three rows: clients 0 and 2 hold classes 0 and 1, client 1 holds 1 and 2."""
    y = np.array([0] * 3 + [1] * 9 + [2] * 30)
    result = Consecutive(clients=3, classes_per_client=2, new_users=0.0).assign(
        labelled(y, y[:0], 3), np.random.default_rng(0)
    )
    counts = np.array([np.bincount(y[rows], minlength=3) for rows in result.train])
    assert counts.sum(0).tolist() == [3, 9, 30]
    assert (counts[[0, 1, 2], [2, 0, 1]] == 0).all()
    assert counts[0].sum() <= min(counts[1].sum(), counts[2].sum())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes_per_client": 6}, r"partition\.classes_per_client = 6 is more than the 5 classes"),
        ({"clients": 2, "classes_per_client": 3}, "2 clients with 3 consecutive classes each do not cover 5 classes"),
    ],
)
def test_what_cannot_be_dealt_is_refused(options, message):
    with pytest.raises(UserError, match=message):
        pooled(shaped(5, 20, 4), **{"clients": 10, **options})


def test_published_validation_rows_are_not_mixed_with_others():
    examples = shaped(5, 20, 4)._replace(validation=np.arange(3))
    with pytest.raises(UserError, match=r"partition\.test would mix"):
        pooled(examples, clients=5)
    assert len(Consecutive(clients=5, new_users=0.0).assign(examples, np.random.default_rng(0)).validation) == 5
