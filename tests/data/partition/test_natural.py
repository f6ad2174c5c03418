import logging

import numpy as np
import pytest

from coterie.data.examples import Groups
from coterie.data.federation import Federation
from coterie.data.partition.natural import Natural
from coterie.errors import UserError
from partitions import labelled

# Five writers: dora has no training rows, carl and emil have no test rows, and anna does not train on class 2.
Y_TRAIN, OF_TRAIN = np.array([0, 1, 1, 2, 2, 0, 1, 0]), np.array([0, 1, 0, 1, 2, 0, 4, 1])
Y_TEST, OF_TEST = np.array([2, 1, 0, 2, 0]), np.array([0, 1, 3, 1, 0])
NAMES = ("anna", "bert", "carl", "dora", "emil")
WRITERS = labelled(Y_TRAIN, Y_TEST, 3)._replace(groups=Groups(OF_TRAIN, OF_TEST, NAMES))


def assign(seed=0, **options):
    return Natural(new_users=0.0, **options).assign(WRITERS, np.random.default_rng(seed))


def test_each_writer_is_a_client(caplog):
    with caplog.at_level(logging.INFO, "coterie"):
        result = assign()
    assert list(result.names) == ["anna", "bert", "carl", "emil"]
    assert [rows.tolist() for rows in result.train] == [[0, 2, 5], [1, 3, 7], [4], [6]]
    assert [rows.tolist() for rows in result.test] == [[0, 4], [1, 3], [], []]
    assert [own.tolist() for own in result.classes] == [[0, 1, 2], [0, 1, 2], [2], [1]]
    assert "1 of 5 groups are omitted" in caplog.text


def test_small_groups_are_left_out(caplog):
    with caplog.at_level(logging.INFO, "coterie"):
        result = assign(minimum=3)
    assert list(result.names) == ["anna", "bert"]
    assert "3 of 5 groups are omitted, because they have fewer than 3 training examples" in caplog.text


def test_a_sample_of_the_groups_in_their_order():
    drawn = [tuple(assign(seed, clients=2).names) for seed in range(60)]
    assert len(set(drawn)) == 6
    assert all(pair == tuple(sorted(pair)) for pair in drawn)


def test_names_reach_the_federation():
    federation = Federation.assemble(WRITERS, Natural(new_users=0.5).assign(WRITERS, np.random.default_rng(0)))
    assert federation.ids == ("anna", "bert", "carl", "emil")
    assert len(federation.new) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"minimum": 4}, r"0 of 5 groups have at least 4 training examples; lower partition\.minimum$"),
        ({"clients": 5}, r"4 of 5 groups .* lower partition\.minimum or partition\.clients"),
    ],
)
def test_too_few_groups_name_the_key(options, message):
    with pytest.raises(UserError, match=message):
        assign(**options)


def test_data_without_groups_are_refused():
    with pytest.raises(
        UserError, match=r"partition\.name = 'natural' needs data that say where each example comes from"
    ):
        Natural().assign(labelled(Y_TRAIN, Y_TEST, 3), np.random.default_rng(0))


def test_new_users_may_be_named():
    result = assign(new_clients=["carl", "anna"])
    assert result.is_new.tolist() == [True, False, True, False]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"new_clients": ["karl"]}, r"names 'karl', which is not a client of these data \(did you mean 'carl'\?\)"),
        ({"new_clients": ["dora"]}, r"names 'dora', which is not used because of partition\.clients or"),
        ({"new_clients": ["carl"], "minimum": 2}, r"names 'carl', which is not used"),
    ],
)
def test_a_new_user_that_is_not_there_is_named(options, reason):
    with pytest.raises(UserError, match=rf"partition\.new_clients {reason}"):
        assign(**options)


def test_new_users_are_either_named_or_drawn():
    with pytest.raises(UserError, match=r"new_users = 0\.2 must be 0; remove one of them"):
        Natural(new_users=0.2, new_clients=["carl"]).assign(WRITERS, np.random.default_rng(0))
