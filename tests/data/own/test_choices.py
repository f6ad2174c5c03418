"""Tests of `Federation.from_arrays` with two, four and six arrays."""

import datetime
from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn

from coterie import train
from coterie.data.federation import Federation
from coterie.errors import UserError
from data.own.make import clients


def rows_of(federation, client):
    i = federation.ids.index(client)
    return {split: federation.x[ragged.row(i)].tolist() for split, ragged in federation.splits.items()}


def test_a_clients_split_does_not_depend_on_the_others():
    who = clients()
    forth = Federation.from_arrays(who, validation=0.2)
    back = Federation.from_arrays(dict(reversed(who.items())), validation=0.2)
    alone = Federation.from_arrays({"ben": who["ben"]}, validation=0.2)
    assert rows_of(forth, "ben") == rows_of(back, "ben") == rows_of(alone, "ben")


def test_a_split_is_the_clients_own_and_the_seeds():
    who = clients()
    same = Federation.from_arrays({"anna": who["ben"], "ben": who["ben"]})
    assert rows_of(same, "anna") != rows_of(same, "ben")
    other = Federation.from_arrays({"ben": who["ben"]}, seed=1)
    assert rows_of(other, "ben") != rows_of(same, "ben")


def test_nothing_is_lost_and_shares_are_as_asked():
    who = clients()
    federation = Federation.from_arrays(who, test=0.25, validation=0.25)
    assert federation.sizes("test").tolist() == [4, 6, 2]
    assert federation.sizes("validation").tolist() == [4, 6, 2]
    for name, (x, _) in who.items():
        assert sorted(row for rows in rows_of(federation, name).values() for row in rows) == sorted(x.tolist())


def test_without_a_validation_share_there_is_no_such_split():
    assert list(Federation.from_arrays(clients()).splits) == ["train", "test"]


def test_without_a_test_share_nobody_is_tested():
    assert Federation.from_arrays(clients(), test=0).sizes("test").tolist() == [0, 0, 0]


def test_what_is_given_is_kept_and_what_is_not_is_taken_from_the_training_examples():
    x, y = clients()["ben"]
    given = Federation.from_arrays({"ben": (x[:16], y[:16], x[16:], y[16:])}, test=0.5, validation=0.25)
    assert given.sizes("test").tolist() == [8]
    assert rows_of(given, "ben")["test"] == x[16:].tolist()
    assert given.sizes("validation").tolist() == [4]
    six = Federation.from_arrays({"ben": (x[:9], y[:9], x[9:16], y[9:16], x[16:], y[16:])}, validation=0.5)
    assert rows_of(six, "ben") == {"train": x[:9].tolist(), "test": x[9:16].tolist(), "validation": x[16:].tolist()}


def test_clients_with_and_without_validation_examples_live_together():
    x, y = clients()["ben"]
    federation = Federation.from_arrays({"a": (x, y), "b": (x[:6], y[:6], x[6:9], y[6:9], x[9:12], y[9:12])})
    assert federation.sizes("validation").tolist() == [0, 3]


def test_one_example_is_trained_on():
    federation = Federation.from_arrays({"a": ([[1.0, 2.0]], [3]), "b": clients_of_two()}, validation=0.3)
    assert federation.sizes().tolist()[0] == 1
    assert federation.sizes("test").tolist()[0] == 0


def clients_of_two():
    return np.zeros((8, 2)), [1, 2] * 4


def test_numbers_may_name_clients_everywhere():
    federation = Federation.from_arrays({1: clients_of_two(), 2: clients_of_two()}, new=[2], classes={1: [1, 2, 3]})
    assert federation.new.tolist() == [1]
    assert federation.labels == (1, 2, 3)


def test_two_names_that_read_the_same():
    with pytest.raises(UserError, match="two clients are called '1'"):
        Federation.from_arrays({1: clients_of_two(), "1": clients_of_two()})


@pytest.mark.parametrize("shares", [{"test": 1.0}, {"test": -0.1}, {"test": 0.5, "validation": 0.5}, {"test": np.nan}])
def test_shares_that_leave_nothing_to_train_on(shares):
    with pytest.raises(UserError, match="so that some examples remain for training"):
        Federation.from_arrays({"a": clients_of_two()}, **shares)


def test_errors_call_two_arrays_by_their_names():
    with pytest.raises(UserError, match="client 'a': x row 1 is not finite"):
        Federation.from_arrays({"a": ([[1.0, 2.0], [np.nan, 0.0]], [0, 1])})
    with pytest.raises(UserError, match="client 'a': 2 rows in x but 1 labels in y"):
        Federation.from_arrays({"a": (np.zeros((2, 2)), [0])})


def test_a_validation_label_that_is_not_trained_on():
    x = np.zeros((1, 2))
    with pytest.raises(UserError, match="client 'a': y_validation row 0 has a label outside"):
        Federation.from_arrays({"a": (x, [0], x, [0], x, [1])})


@pytest.mark.parametrize("empty", [[], np.empty((0, 2))])
def test_an_empty_client(empty):
    with pytest.raises(UserError, match="client 'a' has no training example"):
        Federation.from_arrays({"a": (empty, [])})


def test_what_cannot_be_chosen():
    with pytest.raises(
        TypeError, match=r"unknown argument 'tests' \(did you mean 'test'\?\); .*: new, classes, test, "
    ):
        Federation.from_arrays({"a": clients_of_two()}, tests=0.5)


def test_numbers_stay_numbers_and_are_split_without_classes():
    x = np.arange(8.0)[:, None]
    federation = Federation.from_arrays({"anna": (x, x[:, 0] / 3), "ben": (x, x[:, 0])}, regression=True)
    assert federation.labels == ()
    assert federation.sizes("test").tolist() == [2, 2]
    np.testing.assert_array_equal(federation.y[:8], federation.x[:8, 0] / 3)


@pytest.mark.parametrize(
    ("y", "words"),
    [
        ([1.0, float("nan")], r"client 'anna': y row 1 is not finite \(NaN or infinity\); fix or remove it"),
        (["low", "high"], "y row 0 has a label that is text, not a number; convert it, or omit `regression`"),
        ([[1.0], [2.0]], "y must have one number per row"),
    ],
)
def test_what_is_no_number_is_said(y, words):
    with pytest.raises(UserError, match=words):
        Federation.from_arrays({"anna": (np.ones((2, 1)), y)}, regression=True)


def test_numbers_without_the_word_are_explained():
    with pytest.raises(UserError, match=r"y row 0 is not a class label .*; to predict numbers .*, set `regression`"):
        Federation.from_arrays({"anna": (np.ones((2, 1)), [0.5, 1.0])})


def test_a_table_of_numbers(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("site,a,y\n" + "".join(f"s{i % 2},{i},{i / 4}\n" for i in range(12)))
    federation = Federation.from_table(path, regression=True, test=0.0)
    assert federation.y.tolist() == [i / 4 for i in (*range(0, 12, 2), *range(1, 12, 2))]


def test_tokens_stay_whole_numbers_and_reach_an_embedding():
    rng = np.random.default_rng(0)
    sentences = {name: (rng.integers(0, 9, (12, 4)), [0, 1] * 6) for name in ("anna", "ben")}
    federation = Federation.from_arrays(sentences, tokens=True)
    assert federation.x.dtype == torch.int64
    assert Federation.from_arrays(sentences).x.dtype == torch.float32
    body = nn.Sequential(nn.Embedding(9, 3), nn.Flatten())
    net = nn.Sequential(OrderedDict(body=body, head=nn.Linear(12, 2)))
    run = train(federation, model=net, rounds=1)
    assert run.history[0].cohort == ("anna", "ben")
    words, classes = rng.integers(0, 9, (6, 4)), [5, 6, 7] * 2
    assert run.personalize(words, classes).classes == (5, 6, 7)


@pytest.mark.parametrize("bad", [-1, 0.5, 2**63, 1e300])
def test_tokens_are_whole_numbers_from_0(bad):
    with pytest.raises(UserError, match="client 'a': x row 1 has values that are not tokens"):
        Federation.from_arrays({"a": ([[1, 2], [bad, 0]], [0, 1])}, tokens=True)


@pytest.mark.parametrize("kind", ["S3", "datetime64[D]"])
def test_labels_of_one_type_that_are_no_labels(tmp_path, kind):
    y = np.array(["2020-01-01", "2020-01-02"]).astype(kind)
    x = np.eye(2)
    with pytest.raises(UserError, match=r"^client 'anna': y holds .*, not labels; use whole numbers or text$"):
        Federation.from_arrays({"anna": (x, y)})
    np.savez(tmp_path / "anna.npz", x=x, y=y)
    with pytest.raises(UserError, match=r"anna.npz, y holds .*, not labels; use whole numbers or text$"):
        Federation.from_folder(tmp_path)


@pytest.mark.parametrize("value", [b"a", datetime.date(2020, 1, 1), datetime.datetime(2020, 1, 1)])
def test_objects_that_are_no_labels(value):
    with pytest.raises(UserError, match=r"^client 'anna': y row 0 is not a number|not labels; use whole") as caught:
        Federation.from_arrays({"anna": (np.eye(2), np.array([value, value], dtype=object))})
    assert "mixes" not in str(caught.value)


def test_a_seed_is_a_whole_number():
    arrays = {"anna": (np.eye(2), [0, 1])}
    for seed in ("x", 1.5, None, True):
        with pytest.raises(UserError, match="`seed` must be a whole number, such as seed=1"):
            Federation.from_arrays(arrays, seed=seed)
    assert (
        Federation.from_arrays(arrays, seed=np.int64(3)).fingerprint()
        == Federation.from_arrays(arrays, seed=3).fingerprint()
    )


def test_new_users_are_a_list():
    with pytest.raises(UserError, match=r"`new` must be a list of clients, not a text; .* new=\['anna'\]$"):
        Federation.from_arrays({"anna": (np.eye(2), [0, 1])}, new="anna")
