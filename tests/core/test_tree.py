"""Trees: names, arithmetic, stacking."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.core.tree import (
    Tree,
    descend,
    displacement,
    finite_rows,
    is_finite,
    like,
    num_bytes,
    pick,
    shift,
    stack,
    under,
    unstack,
    within,
)

EXACT = {"rtol": 0.0, "atol": 0.0}

# Multiples of 1/8 up to 2^20, whose sums and products are exact in float64.
dyadic = st.integers(-(2**23), 2**23).map(lambda n: n / 8)
vectors = st.lists(dyadic, min_size=1, max_size=4)


def tree(**values: list[float]) -> Tree:
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in values.items()}


def test_pick_takes_these_names_in_this_order_and_shares_their_tensors() -> None:
    whole = tree(a=[1.0], b=[2.0], c=[3.0])
    part = pick(whole, ("c", "a"))
    assert list(part) == ["c", "a"]
    assert part["c"] is whole["c"]


def test_pick_of_a_name_that_is_not_there_fails() -> None:
    with pytest.raises(KeyError, match="b"):
        pick(tree(a=[1.0]), ["b"])


names = st.text(st.characters(codec="ascii", categories=["L", "N"], include_characters="_."), min_size=1)
labels = st.text(st.characters(codec="ascii", categories=["L", "N"], include_characters="_"), min_size=1)


@settings(deadline=None)
@given(labels, st.sets(names))
def test_within_is_the_reverse_of_under(label: str, given: set[str]) -> None:
    own = {name: torch.tensor(float(i)) for i, name in enumerate(sorted(given))}
    moved = under(label, own)
    assert list(moved) == [f".{label}.{name}" for name in own]
    back = within(label, moved)
    assert list(back) == list(own)
    assert all(back[name] is value for name, value in own.items())


@settings(deadline=None)
@given(labels, labels, st.sets(names), st.sets(names))
def test_two_labels_and_the_names_of_a_model_never_clash(
    label: str, other: str, mine: set[str], parameters: set[str]
) -> None:
    """Names of parameters have no empty parts, so they never begin with a dot."""
    model = {name: torch.zeros(()) for name in parameters if not name.startswith(".")}
    own, theirs = ({name: torch.tensor(value) for name in mine} for value in (1.0, 2.0))
    together = {**model, **under(label, own), **under(other, theirs), ".single": torch.tensor(3.0)}
    assert together.keys() >= model.keys()
    assert all(together[name] is value for name, value in model.items())
    if label != other:
        assert len(together) == len(model) + 2 * len(mine) + 1
        assert all(within(label, together)[name] is value for name, value in own.items())
        assert within(label, together).keys() == own.keys()
    assert within(other, together).keys() == theirs.keys()


def test_a_label_is_matched_as_a_whole() -> None:
    both = {
        **under("c", tree(a=[1.0])),
        **under("c_i", tree(a=[2.0])),
        "c.a": torch.tensor(3.0),
        ".c": torch.tensor(4.0),
    }
    assert within("c", both)["a"].tolist() == [1.0]
    assert within("c_i", both)["a"].tolist() == [2.0]
    assert within("d", both) == {}
    assert within("c", under("c_i", under("c", tree(a=[1.0])))) == {}


def test_labels_can_be_nested() -> None:
    inner = under("m", tree(a=[1.0]))
    assert list(under("h", inner)) == [".h..m.a"]
    assert within("m", within("h", under("h", inner)))["a"].tolist() == [1.0]


@settings(deadline=None)
@given(vectors, dyadic, st.sampled_from([0.0, 0.5, 1.0, -2.0]))
def test_descend_is_tree_minus_rate_times_gradient(value: list[float], slope: float, rate: float) -> None:
    before = tree(a=value)
    after = descend(before, tree(a=[slope] * len(value), other=[9.0]), rate)
    assert after.keys() == {"a"}
    assert after["a"].tolist() == [v - rate * slope for v in value]
    assert before["a"].tolist() == value


def test_descend_takes_a_tensor_for_a_rate() -> None:
    assert descend(tree(a=[1.0, 2.0]), tree(a=[4.0, 8.0]), torch.tensor(0.25))["a"].tolist() == [0.0, 0.0]


@settings(deadline=None)
@given(vectors, dyadic)
def test_shift_by_the_displacement_arrives(value: list[float], step: float) -> None:
    before, after = tree(a=value), tree(a=[v + step for v in value], other=[1.0])
    moved = displacement(after, before)
    assert moved.keys() == {"a"}
    assert moved["a"].tolist() == [step] * len(value)
    torch.testing.assert_close(shift(before, moved), pick(after, ["a"]), **EXACT)


@pytest.mark.parametrize(("by", "expected"), [(0.4, 7), (0.6, 8), (-0.6, 6), (3.0, 10)])
def test_shift_rounds_an_integer_buffer_to_the_nearest_and_keeps_its_type(by: float, expected: int) -> None:
    counter = {"n": torch.tensor(7, dtype=torch.int64)}
    after = shift(counter, {"n": torch.tensor(by)})
    assert after["n"].dtype == torch.int64
    assert after["n"].item() == expected
    assert counter["n"].item() == 7


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_shift_keeps_the_type_of_a_float(dtype: torch.dtype) -> None:
    after = shift({"a": torch.ones(2, dtype=dtype)}, {"a": torch.ones(2, dtype=torch.float64)})
    assert after["a"].dtype == dtype
    assert after["a"].tolist() == [2.0, 2.0]


def test_shift_leaves_alone_what_is_not_named() -> None:
    before = {**tree(a=[1.0, 2.0], b=[3.0]), "n": torch.tensor(7)}
    after = shift(before, tree(b=[0.5], other=[9.0]))
    assert list(after) == ["a", "b", "n"]
    assert after["a"] is before["a"]
    assert after["n"] is before["n"]
    assert after["b"].tolist() == [3.5]
    assert before["b"].tolist() == [3.0]
    assert shift(before, {}) == before


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 2])
def test_one_bad_number_anywhere_makes_a_tree_not_finite(bad: float, place: int) -> None:
    values = [1.0, 2.0, 3.0]
    assert is_finite(tree(a=[0.0], b=values))
    values[place] = bad
    assert not is_finite(tree(a=[0.0], b=values))
    assert not is_finite(tree(b=values, a=[0.0]))


def test_integers_and_the_empty_tree_are_finite() -> None:
    assert is_finite({"n": torch.tensor(2**62)})
    assert is_finite({})


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_numbers_whose_sum_overflows_are_finite(dtype: torch.dtype) -> None:
    largest = {"a": torch.full((2, 3), torch.finfo(dtype).max, dtype=dtype), "b": torch.ones(2)}
    assert is_finite(largest)
    assert finite_rows(2, largest).tolist() == [True, True]


def test_num_bytes_counts_elements_by_their_own_width() -> None:
    mixed = {
        "a": torch.zeros(3, 5, dtype=torch.float32),
        "b": torch.zeros(2, dtype=torch.float64),
        "c": torch.zeros((), dtype=torch.int64),
        "d": torch.zeros(7, dtype=torch.bool),
        "e": torch.zeros(0),
    }
    assert num_bytes(mixed) == 15 * 4 + 2 * 8 + 8 + 7
    assert num_bytes({}) == 0
    assert num_bytes({"view": torch.zeros(100)[:3]}) == 12


def test_unstack_is_the_reverse_of_stack() -> None:
    trees = [{"a": torch.tensor([1.0, i]), "b": torch.tensor(i)} for i in range(3)]
    stacked = stack(trees)
    assert stacked["a"].shape == (3, 2)
    again = unstack(stacked, 3)
    assert all(torch.equal(tree[name], back[name]) for tree, back in zip(trees, again, strict=True) for name in tree)
    assert unstack({}, 2) == [{}, {}]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_one_bad_number_spoils_its_own_row_only(bad: float) -> None:
    values = torch.zeros(3, 2, 2)
    values[1, 1, 0] = bad
    tree = {"a": values, "b": torch.zeros(3), "n": torch.arange(3)}
    assert finite_rows(3, tree).tolist() == [True, False, True]
    assert finite_rows(3, {}, tree, tree).tolist() == [True, False, True]
    assert finite_rows(2, {}).tolist() == finite_rows(2).tolist() == [True, True]


def test_like_copies_values_into_the_pattern_s_layout() -> None:
    pattern = {"w": torch.zeros(2, 3, 4, 4, dtype=torch.float64).to(memory_format=torch.channels_last)}
    values = {"w": torch.rand(2, 3, 4, 4, dtype=torch.float64)}
    copied = like(pattern, values)
    assert torch.equal(copied["w"], values["w"])
    assert copied["w"].stride() == pattern["w"].stride() != values["w"].stride()
    assert pattern["w"].sum() == 0
