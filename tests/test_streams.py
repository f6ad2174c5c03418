from itertools import product

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from coterie import streams

MASK = 2**64 - 1


def splitmix_finalizer(z: int) -> int:
    """Stafford's mix 13, as in java.util.SplittableRandom, in Python's own integers."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def chi_square(cells: Tensor, num_cells: int) -> float:
    counts = np.bincount(cells.numpy(), minlength=num_cells)
    expected = len(cells) / num_cells
    return float(((counts - expected) ** 2 / expected).sum())


def bound(num_cells: int) -> float:
    """Mean plus six standard deviations of a chi-square variable: passed by about all but one in 10^8."""
    freedom = num_cells - 1
    return freedom + 6 * (2 * freedom) ** 0.5


def test_the_key_never_changes() -> None:
    # Other values would silently change the numbers of every recipe, and break the resuming of older runs.
    assert streams.key(0, "cohort") == 938528259235636655
    assert streams.key(7, "batches", 3, "anna") == 4338710202672466522


def test_keys_of_several_clients_are_their_own_keys() -> None:
    names = ["anna", "", "ben\0", "Ω"]
    assert streams.keys(7, "batches", 3, names).tolist() == [streams.key(7, "batches", 3, name) for name in names]
    assert streams.keys(7, "batches", 3, []).tolist() == []


def test_every_part_of_the_key_makes_a_stream_of_its_own() -> None:
    parts = product([0, 1, 10, 11], ["cohort", "batches", "personal"], [0, 1, 10, 11, 111], ["", "0", "1", "11", "a"])
    keys = [streams.key(*part) for part in parts]
    assert len(set(keys)) == len(keys) == 4 * 3 * 5 * 5
    assert all(0 <= key < 2**63 for key in keys)


@settings(deadline=None)
@given(st.integers(0, 2**70), st.text(st.characters(codec="utf-8", exclude_characters="\0")))
def test_any_seed_and_any_client_name_give_63_bits(seed: int, client: str) -> None:
    assert 0 <= streams.key(seed, "batches", 1, client) < 2**63


def test_the_index_and_the_client_are_optional() -> None:
    assert streams.key(5, "partition") == streams.key(5, "partition", 0, "")


def test_a_generator_starts_over_whatever_was_drawn_before() -> None:
    first = streams.generator(1, "cohort", 4)
    drawn = first.random(5)
    first.random(100)
    np.testing.assert_array_equal(streams.generator(1, "cohort", 4).random(5), drawn)


def test_generators_of_different_streams_are_uncorrelated() -> None:
    draws = np.array([streams.generator(1, "cohort", index).standard_normal(4000) for index in range(6)])
    off_diagonal = np.corrcoef(draws)[np.triu_indices(6, 1)]
    assert np.abs(off_diagonal).max() < 6 / 4000**0.5  # a correlation's standard deviation is 1/sqrt(n)


def test_torch_is_seeded_inside_and_left_as_it_was_outside() -> None:
    torch.manual_seed(3)
    expected_outside = torch.rand(4)
    torch.manual_seed(11)
    expected_inside = torch.rand(4)

    torch.manual_seed(3)
    with streams.torch_seeded(11):
        inside = torch.rand(4)
    assert torch.equal(inside, expected_inside)
    assert torch.equal(torch.rand(4), expected_outside)


def test_torch_is_left_as_it_was_after_an_exception() -> None:
    state = torch.get_rng_state()
    try:
        with streams.torch_seeded(11):
            torch.rand(4)
            raise LookupError
    except LookupError:
        pass
    assert torch.equal(torch.get_rng_state(), state)


@settings(deadline=None)
@given(st.integers(0, 2**63 - 1), st.lists(st.integers(0, 2**40), min_size=1, max_size=3))
def test_bits_are_splitmix64(stream: int, counters: list[int]) -> None:
    state = stream
    for counter in counters:
        state = splitmix_finalizer((state + (counter + 1) * 0x9E3779B97F4A7C15) & MASK)
    drawn = streams.bits(torch.tensor(stream), *map(torch.tensor, counters))
    assert drawn.item() == state & (2**62 - 1)


def test_bits_are_uniform_in_high_middle_and_low_places() -> None:
    for seed in range(5):
        drawn = streams.bits(torch.tensor(streams.key(seed, "test")), torch.tensor(0), torch.arange(64_000))
        assert drawn.min() >= 0
        for shift in (0, 28, 56):
            assert chi_square((drawn >> shift) & 63, 64) < bound(64)


def test_successive_counters_give_independent_bits() -> None:
    drawn = streams.bits(torch.tensor(1), torch.arange(64_000)) >> 59
    assert chi_square(drawn[::2] * 8 + drawn[1::2], 64) < bound(64)


def test_bits_differ_by_stream_by_counter_and_by_the_order_of_counters() -> None:
    stream, one, two = (torch.tensor(value) for value in (5, 1, 2))
    drawn = [
        streams.bits(stream, one),
        streams.bits(stream, two),
        streams.bits(stream, one, two),
        streams.bits(stream, two, one),
        streams.bits(stream + 1, one),
    ]
    assert len({value.item() for value in drawn}) == 5
    grid = streams.bits(stream, torch.arange(300)[:, None], torch.arange(300))
    assert len(grid.unique()) == 300 * 300


def test_bits_are_the_same_under_vmap() -> None:
    keys = torch.tensor([streams.key(0, "batches", 1, str(i)) for i in range(7)])
    epochs, places = torch.arange(7) * 3, torch.arange(20)
    batched = torch.func.vmap(streams.bits, in_dims=(0, 0, None))(keys, epochs, places)
    single = torch.stack([streams.bits(key, epoch, places) for key, epoch in zip(keys, epochs, strict=True)])
    assert torch.equal(batched, single)
