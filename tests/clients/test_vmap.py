"""How clients are grouped, and how many are computed at once."""

from hypothesis import given
from hypothesis import strategies as st

import reference as ref
from coterie.clients import work
from coterie.clients.engine import Call
from coterie.clients.vmap import Vmap, groups, half_octave
from coterie.methods import PFLEGO, FedAvg


@given(st.integers(1, 10**6))
def test_padding_is_never_more_than_a_third(size):
    grid = half_octave(size)
    assert size <= grid
    assert grid - size < grid / 3
    assert half_octave(grid) == grid


def test_the_grid():
    assert sorted({half_octave(size) for size in range(33)}) == [0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32]


def test_groups_have_one_shape_and_similar_sizes():
    setup = ref.setup(PFLEGO(), ref.federation(sizes=(5, 3, 6, 1, 7, 4)))  # heads of 3, 2, 3, 1, 3, 2
    personal = [ref.store(setup)[i] for i in range(6)]
    sizes = [(size,) for size in (5, 3, 6, 1, 7, 4)]
    assert sorted(groups(setup.load, sizes, [personal])) == [[0, 2], [1], [3], [4], [5]]
    assert sorted(groups(setup.load, sizes, [])) == [[0, 2], [1], [3], [4], [5]]
    assert sorted(groups(setup.load, [(6,)] * 6, [personal])) == [[0, 2, 4], [1, 5], [3]]


def test_clients_are_similar_in_all_splits():
    setup = ref.setup(FedAvg(), ref.federation(sizes=(4,) * 4))
    assert sorted(groups(setup.load, [(5, 1), (6, 1), (6, 3), (5, 0)], [])) == [[0, 1], [2], [3]]
    assert groups(setup.load, setup.load.sizes([0, 1, 2], []), []) == [[0, 1, 2]]


def test_memory_decides_how_many_are_computed_at_once():
    setup = ref.setup(FedAvg(), ref.federation(sizes=(4,) * 10))
    shared, clients, nothing = setup.task.shared_model(), list(range(10)), [{}] * 10
    each = 4 * sum(value.numel() for value in shared.values()) * 8 + 4 * setup.load.work.probe.example_bytes
    each += 4 * 4 * 8  # products of all pairs of examples
    for fit in (1, 3, 100):
        engine = Vmap(memory=fit * each / 1e9 + 1e-12)
        parts = list(engine.each_client(setup.load, Call(work.score, shared, clients, (nothing,), ("train",))))
        assert [len(group.places) for group in parts] == {1: [1] * 10, 3: [3, 3, 3, 1], 100: [10]}[fit]


def test_example_bytes_are_what_the_pass_makes():
    setup = ref.setup(FedAvg())  # 4 features, 3 hidden units, 5 outputs, in float64
    assert setup.load.work.probe.example_bytes == 8 * (4 + 3 + 3 + 5)
