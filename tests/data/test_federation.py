from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray

from coterie.data.federation import Federation
from coterie.errors import UserError

Arrays = tuple[ArrayLike, ArrayLike, ArrayLike, ArrayLike]


def rows(n: int, start: int = 0) -> NDArray[np.float32]:
    """Return n rows of two numbers. The first is the number of the row."""
    return np.stack([np.arange(start, start + n), np.full(n, 0.5)], axis=1).astype(np.float32)


def client(y_train: Sequence[Any], y_test: Sequence[Any], start: int = 0) -> Arrays:
    return rows(len(y_train), start), y_train, rows(len(y_test), start + 100), y_test


def three(*, y: Sequence[int] = (3, 7, 7), **options: Any) -> Federation:
    """anna has labels {3, 7}, bert {0, 3, 9}, carl {7}."""
    clients = {
        "anna": client(y, [7, 3]),
        "bert": client([9, 0, 3, 9], [0], start=10),
        "carl": client([7], [7, 7, 7], start=20),
    }
    return Federation.from_arrays(clients, **options)


def labels_of(federation: Federation, i: int, split: str) -> list[Any]:
    return [federation.labels[place] for place in federation.data(i, split, "global").y.tolist()]


# -- what it holds


def test_labels_are_numbered_by_their_place_in_the_sorted_union() -> None:
    federation = three()
    assert federation.ids == ("anna", "bert", "carl")
    assert federation.labels == (0, 3, 7, 9)
    assert [federation.classes.row(i).tolist() for i in range(3)] == [[1, 2], [0, 1, 3], [2]]
    assert [federation.num_outputs(i, "local") for i in range(3)] == [2, 3, 1]
    assert [federation.num_outputs(i, "global") for i in range(3)] == [4, 4, 4]


@pytest.mark.parametrize("labels", ["local", "global"])
@pytest.mark.parametrize("split", ["train", "test"])
def test_clients_gathered_together_are_the_clients_alone_padded(labels: Any, split: str) -> None:
    federation = three()
    together = federation.gather([2, 0, 1], split, labels, [5, 6, 7], num_outputs=6)
    assert together.stream.tolist() == [5, 6, 7]
    assert together.classes.shape == (3, 6)
    for place, i in enumerate([2, 0, 1]):
        alone = federation.data(i, split, labels)
        n = len(alone.y)
        assert together.mask[place].tolist() == [True] * n + [False] * (together.mask.shape[1] - n)
        assert torch.equal(together.x[place, :n], alone.x)
        assert torch.equal(together.y[place, :n], alone.y)
        own = (
            federation.classes.row(i).tolist() if labels == "global" else list(range(federation.num_outputs(i, labels)))
        )
        assert together.classes[place].nonzero()[:, 0].tolist() == own


def test_each_client_gets_its_own_rows_labelled_over_the_union_or_over_its_own_set() -> None:
    federation = three()
    bert = federation.data(1, "train", "global", stream=42)
    assert bert.x[:, 0].tolist() == [10, 11, 12, 13]
    assert bert.y.tolist() == [3, 0, 1, 3]
    assert bert.mask.tolist() == [True] * 4
    assert bert.stream.item() == 42
    assert federation.data(1, "train", "local").y.tolist() == [2, 0, 1, 2]
    assert federation.data(0, "test", "global").y.tolist() == [2, 1]
    assert federation.data(0, "test", "local").y.tolist() == [1, 0]
    assert federation.data(0, "test", "local").x[:, 0].tolist() == [100, 101]


def test_sizes_are_counted_by_split() -> None:
    assert three().sizes().tolist() == [3, 4, 1]
    assert three().sizes("test").tolist() == [2, 1, 3]


@pytest.mark.parametrize("kind", [list, np.array, lambda y: np.array(y, dtype=object)])
def test_labels_may_be_strings(kind: Any) -> None:
    clients = {
        "a": client(kind(["cat", "ant", "cat"]), kind(["ant"])),
        "b": client(kind(["zebra", "cat"]), kind(["zebra", "zebra"])),
    }
    federation = Federation.from_arrays(clients)
    assert federation.labels == ("ant", "cat", "zebra")
    assert federation.data(0, "train", "global").y.tolist() == [1, 0, 1]
    assert federation.data(1, "train", "local").y.tolist() == [1, 0]
    assert federation.data(1, "test", "local").y.tolist() == [1, 1]


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(-50, 50), min_size=1, max_size=8), min_size=1, max_size=5))
def test_every_label_comes_back(labels: list[list[int]]) -> None:
    federation = Federation.from_arrays({str(i): client(y, y[:1], 10 * i) for i, y in enumerate(labels)})
    assert federation.labels == tuple(sorted({label for y in labels for label in y}))
    for i, y in enumerate(labels):
        own = sorted(set(y))
        assert labels_of(federation, i, "train") == y
        assert labels_of(federation, i, "test") == y[:1]
        assert [own[place] for place in federation.data(i, "train", "local").y.tolist()] == y


def test_whole_floats_are_labels() -> None:
    federation = Federation.from_arrays({"a": client([2.0, 5.0], [5.0])})
    assert federation.labels == (2, 5)
    assert federation.data(0, "test", "global").y.tolist() == [1]


def test_a_client_with_one_class_is_legal() -> None:
    federation = three()
    assert federation.num_outputs(2, "local") == 1
    assert federation.data(2, "train", "local").y.tolist() == [0]


def test_a_client_may_declare_classes_that_it_does_not_train_on() -> None:
    federation = three(classes={"carl": [8, 7, 3]})
    assert federation.labels == (0, 3, 7, 8, 9)
    assert federation.classes.row(2).tolist() == [1, 2, 3]
    assert federation.num_outputs(2, "local") == 3
    assert federation.data(2, "train", "local").y.tolist() == [1]
    assert federation.classes.row(0).tolist() == [1, 2]


def test_a_declared_class_may_be_met_in_the_test_split_alone() -> None:
    federation = Federation.from_arrays({"a": client([1, 2], [3])}, classes={"a": [1, 2, 3]})
    assert federation.data(0, "test", "local").y.tolist() == [2]


def test_new_users_are_set_apart() -> None:
    federation = three(new=["bert"])
    assert federation.existing.tolist() == [0, 2]
    assert federation.new.tolist() == [1]
    assert three().new.tolist() == []


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float16, np.bool_])
def test_inputs_of_other_types_become_float32(dtype: type) -> None:
    x = np.array([[0, 1], [1, 1]], dtype=dtype)
    federation = Federation.from_arrays({"a": (x, [0, 1], x, [0, 1])})
    assert federation.x.dtype == torch.float32
    assert federation.data(0, "test", "global").x.tolist() == [[0, 1], [1, 1]]


def test_float64_inputs_stay_and_others_are_converted_on_request() -> None:
    double = np.full((1, 2), 0.1)
    federation = Federation.from_arrays({"a": (double, [4], double, [4])})
    assert federation.x.dtype == torch.float64
    single = federation.to(torch.float32, torch.device("cpu"))
    assert single.x.dtype == torch.float32
    assert single.y.dtype == federation.y.dtype
    back = three().to(torch.float64, torch.device("cpu"))
    assert back.x.dtype == torch.float64
    assert torch.equal(back.x, three().x.double())
    assert back.data(0, "train", "local").y.tolist() == [0, 1, 1]


def test_inputs_may_have_any_shape() -> None:
    images = np.arange(24.0, dtype=np.float32).reshape(2, 3, 4)
    federation = Federation.from_arrays({"a": (images, [0, 1], images[:1], [0])})
    np.testing.assert_array_equal(federation.data(0, "train", "global").x.numpy(), images)


def test_a_client_may_have_no_test_example() -> None:
    federation = Federation.from_arrays({"a": client([0, 1], []), "b": client([0, 1], [1])})
    assert federation.sizes("test").tolist() == [0, 1]
    assert federation.data(0, "test", "local").x.shape == (0, 2)
    assert federation.data(1, "test", "local").y.tolist() == [1]


def test_it_is_shown_without_anybodys_data() -> None:
    federation = Federation.from_arrays({"anna": client([3, 7, 7], [7]), "bert": client([9], [])}, new=["bert"])
    assert repr(federation) == str(federation) == "1 client and 1 new user, 4 train, 1 test examples, 3 classes"
    assert str(three()) == "3 clients, 8 train, 6 test examples, 4 classes"


def test_a_federation_is_itself_and_no_other() -> None:
    one, other = three(), three()
    assert one == one
    assert one != other
    assert len({one, other, one}) == 2


# -- its fingerprint


def test_the_fingerprint_is_that_of_the_content() -> None:
    assert three().fingerprint() == three().fingerprint()


@pytest.mark.parametrize(
    "other",
    [
        {"y": (3, 7, 3)},
        {"y": (3, 7)},
        {"new": ["carl"]},
        {"classes": {"carl": [7, 9]}},
        {"classes": {"carl": [7, 11]}},
    ],
)
def test_the_fingerprint_tells_federations_apart(other: dict[str, Any]) -> None:
    assert three(**other).fingerprint() != three().fingerprint()


def test_the_fingerprint_knows_who_is_who() -> None:
    first, second = client([0, 1], [1]), client([0, 1], [1], start=50)
    names = [{"a": first, "b": second}, {"a": first, "c": second}]
    assert len({Federation.from_arrays(each).fingerprint() for each in names}) == 2


# -- what a user may get wrong


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("split", ["train", "test"])
def test_an_input_that_is_not_finite_is_named_with_client_split_and_row(bad: float, split: str) -> None:
    x_train, y_train, x_test, y_test = rows(3), [0, 1, 1], rows(3), [0, 1, 1]
    (x_train if split == "train" else x_test)[2, 1] = bad
    with pytest.raises(UserError, match=rf"client 'b': x_{split} row 2 is not finite"):
        Federation.from_arrays({"a": client([0], [0]), "b": (x_train, y_train, x_test, y_test)})


def test_a_client_without_training_examples_is_named() -> None:
    with pytest.raises(UserError, match="client 'b' has no training example"):
        Federation.from_arrays({"a": client([0], [0]), "b": client([], [])})


def test_a_test_label_outside_the_clients_set_is_named_with_its_row() -> None:
    with pytest.raises(UserError, match=r"client 'b': y_test row 1 has a label outside the client's label set"):
        Federation.from_arrays({"a": client([3], [3]), "b": client([1, 2], [2, 3])})


def test_a_training_label_outside_the_declared_set_is_named_with_its_row() -> None:
    with pytest.raises(UserError, match=r"client 'a': y_train row 2 has a label outside"):
        Federation.from_arrays({"a": client([1, 2, 5], [1])}, classes={"a": [1, 2]})


@pytest.mark.parametrize("split", ["train", "test"])
def test_inputs_and_labels_of_different_length_are_counted(split: str) -> None:
    whole, short = (rows(3), [0, 1, 0]), (rows(3), [0, 1])
    arrays = (*short, *whole) if split == "train" else (*whole, *short)
    with pytest.raises(UserError, match=rf"client 'a': 3 rows in x_{split} but 2 labels in y_{split}"):
        Federation.from_arrays({"a": arrays})


@pytest.mark.parametrize("split", ["train", "test"])
def test_rows_of_another_shape_are_named_with_both_shapes(split: str) -> None:
    whole, wide = (rows(2), [0, 1]), (np.zeros((2, 3), dtype=np.float32), [0, 1])
    arrays = (*wide, *whole) if split == "train" else (*whole, *wide)
    with pytest.raises(UserError, match=rf"client 'b': x_{split} rows have shape \(3,\), but .* shape \(2,\)"):
        Federation.from_arrays({"a": client([0], [0]), "b": arrays})


@pytest.mark.parametrize("bad", [0.5, np.nan, np.inf])
def test_a_label_that_is_not_whole_is_named_with_its_row(bad: float) -> None:
    with pytest.raises(UserError, match="client 'a': y_train row 1 is not a class label"):
        Federation.from_arrays({"a": client([0.0, bad, 1.0], [0.0])})


def test_labels_must_be_one_a_row() -> None:
    with pytest.raises(UserError, match=r"client 'a': y_train must have one label per row, got shape \(2, 2\)"):
        Federation.from_arrays({"a": (rows(2), np.eye(2), rows(1), [0])})


def test_inputs_must_be_numbers() -> None:
    with pytest.raises(UserError, match=r"client 'a': x_train holds .*, not numbers"):
        Federation.from_arrays({"a": (np.array([["p", "q"]]), [0], rows(1), [0])})


def test_an_unknown_new_user_is_named() -> None:
    with pytest.raises(UserError, match=r"`new` names \['dora', 'emil'\], which are not among the clients"):
        three(new=["emil", "anna", "dora"])


@pytest.mark.parametrize("arrays", [(rows(1),), (rows(1), [0], rows(1)), (rows(1), [0]) * 4, 7])
def test_a_client_needs_pairs_of_arrays(arrays: Any) -> None:
    with pytest.raises(UserError, match=r"client 'a': expected two arrays \(x, y\), four arrays .* or six"):
        Federation.from_arrays({"a": arrays})


def test_clients_come_by_their_names() -> None:
    with pytest.raises(UserError, match=r"expected a dict .* \{client: \(x, y\), \.\.\.\}, not list"):
        Federation.from_arrays([(rows(1), [0])])  # type: ignore[arg-type]


def test_nobody_is_not_a_federation() -> None:
    with pytest.raises(UserError, match="at least one client"):
        Federation.from_arrays({})


def test_numbers_and_strings_do_not_mix_as_labels() -> None:
    x = np.zeros((1, 2))
    with pytest.raises(UserError, match="the same type for all clients"):
        Federation.from_arrays({"a": (x, [0], x, [0]), "b": (x, ["0"], x, ["0"])})


def test_numbers_may_name_clients_and_lists_may_be_empty() -> None:
    federation = Federation.from_arrays({7: ([[0.5, 1.0]], [1], [], []), "b": ([[0.5, 1.0]], [0], [[1.0, 2.0]], [0])})
    assert federation.ids == ("7", "b")
    assert federation.sizes("test").tolist() == [0, 1]


@pytest.mark.parametrize("bad", [[[1.0], [1.0, 2.0]], None])
def test_what_is_no_array_is_said(bad: object) -> None:
    with pytest.raises(UserError, match="client 'a'"):
        Federation.from_arrays({"a": (bad, [0, 1], [], [])})


def test_inputs_that_overflow_the_chosen_type() -> None:
    federation = Federation.from_arrays({"a": (np.full((1, 2), 1e300), [0], [], [])})
    with pytest.raises(UserError, match=r"too large for torch\.float32"):
        federation.to(torch.float32, torch.device("cpu"))
