import numpy as np
import pytest

from coterie.core.data import Index
from coterie.data.examples import Assignment
from coterie.data.partition.classes import Classes
from coterie.errors import UserError
from partitions import labelled


def balanced(num_classes: int, rows_per_class: int) -> Index:
    return np.arange(num_classes * rows_per_class) % num_classes


def assign(partition: Classes, num_classes: int, rows_per_class: int, seed: int = 0) -> Assignment:
    y = balanced(num_classes, rows_per_class)
    return partition.assign(labelled(y, y, num_classes), np.random.default_rng(seed))


def test_another_seed_gives_another_assignment_and_the_test_set_its_own_shuffle() -> None:
    first, second = (assign(Classes(), 10, 100, seed) for seed in (0, 1))
    assert not all(map(np.array_equal, first.classes, second.classes))
    assert not np.array_equal(first.is_new, second.is_new)
    assert not all(map(np.array_equal, first.train, first.test))


@pytest.mark.parametrize(("clients", "share", "expected"), [(50, 0.2, 10), (9, 0.2, 1), (4, 0.2, 0), (50, 0.0, 0)])
def test_the_share_of_new_users_is_rounded_down(clients: int, share: float, expected: int) -> None:
    result = assign(Classes(clients=clients, classes_per_client=5, new_users=share), 10, 100)
    assert result.is_new.sum() == expected


def test_classes_are_drawn_uniformly() -> None:
    result = assign(Classes(clients=5000, classes_per_client=2), 10, 5000)
    pairs = np.array([own[0] * 10 + own[1] for own in result.classes])
    counts = np.bincount(pairs)[np.unique(pairs)]
    # 45 pairs, each expected 5000 / 45 = 111 times with a standard deviation of 10.4.
    assert len(counts) == 45
    assert np.abs(counts - 5000 / 45).max() < 5 * 10.4


def test_coverage_with_no_place_to_spare() -> None:
    for seed in range(20):
        result = assign(Classes(clients=31, classes_per_client=2, new_users=0.0), 62, 3, seed)
        assert sorted(np.concatenate(result.classes)) == list(range(62))


@pytest.mark.parametrize(
    ("partition", "keys"),
    [
        (Classes(clients=20, classes_per_client=11), ["partition.classes_per_client = 11", "10 classes"]),
        (Classes(clients=5, classes_per_client=2), ["4 existing", "partition.clients", "partition.classes_per_client"]),
        (Classes(clients=40, classes_per_client=2), ["partition.clients = 40", "lower it", "up to 3 clients"]),
    ],
    ids=["more classes than there are", "too few places", "too few rows"],
)
def test_what_cannot_be_dealt_names_the_key(partition: Classes, keys: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        assign(partition, num_classes=10, rows_per_class=3)
    assert all(key in str(caught.value) for key in keys)


def test_as_many_clients_as_the_message_allows_are_fed_whatever_the_seed() -> None:
    y = np.repeat(np.arange(3), (1, 12, 40))
    with pytest.raises(UserError, match="up to 12 clients with any seed"):
        Classes(clients=60).assign(labelled(y, y, 3), np.random.default_rng(0))
    for seed in range(50):
        assert all(map(len, Classes(clients=12).assign(labelled(y, y, 3), np.random.default_rng(seed)).train))


@pytest.mark.parametrize("wrong", [{"clients": 0}, {"classes_per_client": 0}, {"new_users": 1.0}, {"new_users": -0.1}])
def test_settings_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UserError):
        Classes(**wrong)  # type: ignore[arg-type]


def test_an_empty_test_set_leaves_empty_rows() -> None:
    y = balanced(10, 100)
    result = Classes().assign(labelled(y, y[:0], 10), np.random.default_rng(0))
    assert [len(rows) for rows in result.test] == [0] * 50


def test_a_million_rows_over_ten_thousand_clients() -> None:
    result = assign(Classes(clients=10_000, classes_per_client=5), 100, 10_000)
    assert sum(map(len, result.train)) == sum(map(len, result.test)) == 1_000_000
