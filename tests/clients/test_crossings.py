"""How often a round and an evaluation cross between host and device, for cohorts of any size."""

import numpy as np
import pytest
import torch

from coterie import Federation
from coterie.clients.fused import Fused
from coterie.clients.loop import Loop
from coterie.clients.vmap import Vmap
from coterie.core.tree import moved
from coterie.prepare import Prepared, prepare
from coterie.recipe import Recipe
from crossings import DEVICE, HOST, Crossings, device_of, on_host

A_ROUND, A_GROUP = 20, 10
"""Maximum numbers of crossings."""


def federation(number: int) -> Federation:
    """Return clients of four sizes, with validation examples, which are computed in three groups."""
    rng = np.random.default_rng(0)
    sizes = [(8, 6, 7, 3)[i % 4] for i in range(number)]
    parts = [[(rng.normal(size=(n, 4)), np.arange(n) % 2) for n in (size, 4, 2)] for size in sizes]
    return Federation.from_arrays({str(i): sum(part, ()) for i, part in enumerate(parts)})


def prepared(method: str, engine: str, number: int, **options: object) -> Prepared:
    tree = {"method": {"name": method, "tau": 3, **options}, "engine": {"kind": engine}, "run": {"eval_every": 99}}
    run = prepare(Recipe.parse(tree), federation(number))
    run.clients.store._device = DEVICE
    for value in run.rounds.memory.values():
        if not value.ndim:  # PyTorch takes single numbers from anywhere
            on_host(value)
    return run


def counted(run: Prepared) -> tuple[list[int], int, list[int]]:
    """Return the crossings of three rounds and of an evaluation, and the sizes of its groups."""
    playing, rounds, groups = run.rounds.play(), [], list[int]()
    for _ in range(3):
        with Crossings() as crossings:
            next(playing)
        rounds.append(crossings.total)
    run.clients.on_scored = groups.append
    with Crossings() as crossings:
        run.rounds.evaluate()
    return rounds, crossings.total, groups


@pytest.mark.parametrize(
    ("method", "engine", "options"),
    [
        ("pflego", Fused, {}),
        ("fedrecon", Fused, {}),
        ("fedavg", Vmap, {}),
        ("fedavg", Vmap, {"batch_size": 2}),
        ("fedrep", Vmap, {"body_steps": 1}),
    ],
)
def test_a_larger_cohort_crosses_no_more_often(method, engine, options):
    (rounds, scored, groups), more = (counted(prepared(method, engine.__name__.lower(), n, **options)) for n in (8, 40))
    assert len(groups) == 3
    assert max(rounds) <= A_ROUND
    assert scored <= A_GROUP * len(groups)
    assert more == (rounds, scored, [5 * size for size in groups])


def test_the_loop_crosses_for_each_client():
    rounds, scored, groups = counted(prepared("fedavg", Loop.__name__.lower(), 8))
    assert len(groups) == 8
    assert 8 < rounds[-1] <= 4 * 8 + 4
    assert scored <= A_GROUP * len(groups)


def test_trees_move_together():
    trees = [{"w": torch.arange(6.0).reshape(2, 3) + i, "n": torch.tensor(i)} for i in range(4)]
    with Crossings() as crossings:
        there = moved([*trees, {"w": on_host(torch.full((0, 3), 1.0)), "b": on_host(torch.ones(2).double())}], HOST)
        assert all(device_of(value) == HOST for tree in there for value in tree.values())
        back = moved(there, DEVICE)
    assert crossings.total == 2 + 3  # types
    for tree, again in zip(trees, back, strict=False):
        assert tree.keys() == again.keys()
        assert all(torch.equal(tree[name], again[name]) for name in tree)
    assert back[4]["w"].shape == (0, 3)


def test_what_counts_as_a_crossing():
    x, names = torch.arange(4.0), ["item", "mask", "list", "host", "copy", "made", "nothing"]
    counts = []
    for name in names:
        with Crossings() as crossings:
            if name == "item":
                float(x.sum())
            elif name == "mask":
                x[x > 1]
            elif name == "list":
                x[[0, 1]]
            elif name == "host":
                assert x.cpu().sum().item() == 6  # the second does not cross
            elif name == "copy":
                torch.from_numpy(np.ones(4)).to(x.device) + x
            elif name == "made":
                torch.tensor([1.0], device=x.device)
            else:
                (x + 1).view(2, 2)[0].sum() * torch.ones(3).sum()
        counts.append(crossings.total)
    assert counts == [1, 1, 1, 1, 1, 1, 0]


def test_devices_do_not_mix():
    with Crossings(), pytest.raises(AssertionError, match="mixes devices"):
        torch.arange(3) + torch.from_numpy(np.ones(3)).to(DEVICE)
