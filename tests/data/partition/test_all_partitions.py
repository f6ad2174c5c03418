"""Promises of every registered partition. A new one is tested as soon as it is registered."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie import registry
from coterie.data.examples import Assignment, Examples
from coterie.data.federation import Federation
from coterie.data.partition.partition import Partition
from coterie.errors import UserError
from partitions import data_for

NAMES = registry.names("partition")
MORE = {"classes": {"classes_per_client": 1}, "consecutive": {"classes_per_client": 1}, "dirichlet": {"minimum": 1}}
SMALLEST = {"label-ratio": 2}
LARGEST = {"feature-clusters": 300, "louvain": 1000}  # k-means with ten thousand clusters takes minutes


def make(name: str, clients: int, **options: float) -> Partition:
    return registry.load("partition", name)(clients=clients, **MORE.get(name, {}), **options)


def assign(name: str, examples: Examples, clients: int, seed: int = 0, **options: float) -> Assignment:
    return make(name, clients, **options).assign(examples, np.random.default_rng(seed))


def same(one: Assignment, other: Assignment) -> bool:
    parts = zip(one[:-1], other[:-1], strict=True)
    return one.resplit == other.resplit and all(len(a) == len(b) and all(map(np.array_equal, a, b)) for a, b in parts)


some = st.fixed_dictionaries(
    {
        "clients": st.integers(2, 30),
        "num_classes": st.integers(1, 8),
        "spread": st.integers(1, 60),
        "seed": st.integers(0, 2**32 - 1),
    }
)
shares = st.sampled_from([0.0, 0.2, 0.5])
quickly = settings(deadline=None, max_examples=25)


@pytest.mark.parametrize("name", NAMES)
@quickly
@given(case=some, new_users=st.sampled_from([0.0, 0.2]), validation=shares)
def test_every_row_is_dealt_exactly_once(name, case, new_users, validation):
    examples, clients = data_for(name, **case), case["clients"]
    options = {"new_users": 0.0 if name == "classes" else new_users, "validation": validation}
    result = assign(name, examples, clients, **options)
    assert len(result.train) == len(result.test) == len(result.classes) == len(result.is_new) == clients
    assert result.is_new.sum() == int(options["new_users"] * clients + 1e-9)
    assert bool(len(result.validation)) == bool(validation)
    for split in (result.train, result.test, result.validation):
        assert all((np.diff(rows) > 0).all() for rows in split)
    assert all(map(len, result.train))
    np.testing.assert_array_equal(
        np.sort(np.concatenate([*result.train, *result.validation])), range(len(examples.y_train))
    )
    np.testing.assert_array_equal(np.sort(np.concatenate(result.test)), range(len(examples.y_test)))


@pytest.mark.parametrize("name", NAMES)
@quickly
@given(case=some, validation=shares)
def test_a_client_is_tested_within_its_label_set(name, case, validation):
    examples = data_for(name, **case)
    result = assign(name, examples, case["clients"], new_users=0.0, validation=validation)
    for train, test, own in zip(result.train, result.test, result.classes, strict=True):
        assert (np.diff(own) > 0).all()
        trained, tested = set(examples.y_train[train]), set(examples.y_test[test])
        assert tested <= set(own)
        assert trained == set(own) or (name in ("louvain", "natural") and trained | tested == set(own))
    for train, validated in zip(result.train, result.validation, strict=False):
        assert set(examples.y_train[validated]) <= set(examples.y_train[train])


@pytest.mark.parametrize("name", NAMES)
@quickly
@given(case=some)
def test_the_seed_decides(name, case):
    examples, clients = data_for(name, **case), case["clients"]
    one, again = (assign(name, examples, clients, seed=case["seed"], new_users=0.0, validation=0.2) for _ in range(2))
    assert same(one, again)


@pytest.mark.parametrize("name", NAMES)
def test_another_seed_gives_another_partition(name):
    examples = data_for(name, 30, 5, 50, seed=0)
    one, other = (assign(name, examples, 30, seed) for seed in (0, 1))
    assert not np.array_equal(one.is_new, other.is_new)
    assert all(map(np.array_equal, one.train, other.train)) == (name in ("contiguous", "natural"))


@pytest.mark.parametrize("name", NAMES)
def test_it_becomes_a_federation_with_labels_of_its_own(name):
    examples = data_for(name, 12, 5, 50, seed=3)
    federation = Federation.assemble(examples, assign(name, examples, 12, validation=0.3))
    assert set(federation.splits) == {"train", "test", "validation"}
    for i in range(12):
        for split in federation.splits:
            if federation.sizes(split)[i]:
                local, y = (federation.data(i, split, labels).y.numpy() for labels in ("local", "global"))
                np.testing.assert_array_equal(federation.classes.row(i)[local], y)


@pytest.mark.parametrize("name", NAMES)
def test_test_rows_are_not_needed(name):
    examples = data_for(name, 6, 3, 50, seed=0)
    bare = examples._replace(x_test=examples.x_test[:0], y_test=examples.y_test[:0])
    inside = (examples.edges < len(examples.y_train)).all(axis=0)
    bare = bare._replace(
        edges=examples.edges[:, inside], groups=examples.groups._replace(test=examples.groups.test[:0])
    )
    assert [len(rows) for rows in assign(name, bare, 6).test] == [0] * 6


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"classes", "consecutive", "label-ratio", "louvain", "natural"}))
def test_test_rows_of_a_class_without_training_rows_are_nobodys(name):
    examples = data_for(name, 6, 3, 50, seed=0)
    kept = examples.y_train != 1
    holey = examples._replace(x_train=examples.x_train[kept], y_train=examples.y_train[kept])
    result = assign(name, holey, 2)
    np.testing.assert_array_equal(np.sort(np.concatenate(result.test)), np.flatnonzero(examples.y_test != 1))


@pytest.mark.parametrize("name", NAMES)
def test_more_clients_than_examples_names_the_key(name):
    examples = data_for(name, 5, 3, 20, seed=0)
    with pytest.raises(UserError, match=r"partition\.clients"):
        assign(name, examples, len(examples.y_train) + 1, new_users=0.0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("clients", [0, -1, 1.5])
def test_what_is_no_number_of_clients_is_refused(name, clients):
    with pytest.raises(UserError, match="clients"):
        make(name, clients)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("clients", [1, 2, 10_000])
def test_it_ends_whatever_the_number_of_clients(name, clients):
    clients = min(max(clients, SMALLEST.get(name, 1)), LARGEST.get(name, 10_000))
    examples = data_for(name, clients, 5, 1000, seed=1)
    start = time.perf_counter()
    result = assign(name, examples, clients, new_users=0.0)
    assert time.perf_counter() - start < 30
    assert sum(map(len, result.train)) == len(examples.y_train)
    assert all(map(len, result.train))
