"""Real sites end with the bits of a simulation, for every registered method."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import reference as ref
from coterie.models.mlp import MLP
from coterie.recipe import Recipe
from coterie.storage.files import unpacked
from engines import METHODS
from sites.direct import Direct, deployed, simulated

EVERYONE = ("gd", "scaffnew", "i-scaffnew")


def recipe(method: str, **run: object) -> Recipe:
    run = {"seed": 3, "rounds": 4, "eval_every": 2, "clients_per_round": 2, **run}
    tree = {
        "run": run,
        "engine": {"dtype": "float64", "threads": 1},
        "method": {"name": method},
        "eval": {"adapt_steps": 2},
    }
    made = Recipe.parse(tree)
    if made.method.everyone:
        made = replace(made, run=replace(made.run, clients_per_round=None))
    return replace(made, model=MLP(hidden=[4]))


def assert_equal(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], what: str) -> None:
    assert found.keys() == expected.keys(), what
    for name, value in expected.items():
        assert torch.equal(found[name], value), f"{what}: {name}"


def states(transport: Direct, kind: str = "personal") -> dict[str, dict[str, torch.Tensor]]:
    """Return what each site has stored at the end of the run."""
    return {
        name: unpacked(load_file(next((transport.folder / name / "runs").glob(f"*/{kind}.safetensors"))))
        for name in transport.own
    }


@pytest.mark.parametrize("method", METHODS)
def test_a_run_ends_with_the_bits_of_a_simulation(method: str, tmp_path: Path) -> None:
    federation = ref.federation((5, 3, 8), new=0)
    settings = recipe(method)
    transport = Direct(federation, tmp_path)
    found, expected = deployed(settings, transport), simulated(settings, federation)
    assert_equal(found.shared, expected.shared, "shared")
    kept = states(transport)
    for name in federation.ids:
        assert_equal(kept[name], expected.personal(name), name)
    for mine, theirs in zip(found.history, expected.history, strict=True):
        assert (mine.cohort, mine.train_loss, mine.eval, mine.notes) == (
            theirs.cohort, theirs.train_loss, theirs.eval, theirs.notes,
        )  # fmt: skip
        assert mine.cost.bytes_up == theirs.cost.bytes_up
        assert mine.cost.bytes_down == theirs.cost.bytes_down
    assert found.summary.existing == expected.summary.existing
