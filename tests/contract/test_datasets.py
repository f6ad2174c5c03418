"""Every data set trains with its default partition and model, on real files if COTERIE_DATA has them."""

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import reference as ref
from coterie import registry
from coterie.prepare import prepare
from coterie.recipe import Recipe
from data.own.make import write_csv
from data.sets import test_cifar, test_femnist

REAL = {
    "a6a": "libsvm",
    "a9a": "libsvm",
    "cifar-10": "cifar-10",
    "emnist": "emnist-byclass-test",
    "fashion-mnist": "fashion-mnist",
    "mnist": "mnist",
    "mnist-writers": "qmnist-labels",
    "mushrooms": "libsvm",
    "omniglot": "omniglot",
    "pubmed": "pubmed",
    "shakespeare": "shakespeare",
    "sst2": "sst2",
    "w6a": "libsvm",
    "w8a": "libsvm",
}
"""Data sets that need files, and the folders that contain these files."""
PART: dict[str, dict[str, Any]] = {
    "cifar-10": {"batches": 1},
    "emnist": {"split": "test-only"},
    "omniglot": {"rotations": False},
}
"""Settings that use less data, because more is not available or not needed."""
LARGEST_COHORT = 3


def options(name: str, folder: Path) -> dict[str, Any]:
    """Return the settings of [data] besides the name. Files are written if there are no real ones."""
    if name in REAL:
        root = os.environ.get("COTERIE_DATA")
        if not root or not (Path(root) / REAL[name]).is_dir():
            pytest.skip(f"set COTERIE_DATA to a folder that holds {REAL[name]}/")
        return PART.get(name, {})
    rng = np.random.default_rng(0)
    if name == "cifar-100":
        test_cifar.write_hundred(folder, "python")
        for part in ("train", "test"):
            rows, fine = rng.integers(0, 256, size=(600, 3072), dtype=np.uint8), [i % 100 for i in range(600)]
            tree = {"data": rows, "fine_labels": fine, "coarse_labels": [label // 5 for label in fine]}
            (folder / part).write_bytes(pickle.dumps(tree, 2))
    elif name == "femnist":
        writers = {f"f{i:04}": rng.integers(0, 62, size=8).tolist() for i in range(5)}
        for part in ("train", "test"):
            test_femnist.write(folder, part, 0, test_femnist.leaf(writers))
    elif name == "libsvm":
        rows = [f"{i % 2} {1 + i % 5}:{i / 600} 7:1" for i in range(600)]
        (folder / "own").write_text("\n".join(rows) + "\n")
        return {"path": str(folder), "file": "own"}
    elif name == "table":
        table = [{"site": f"s{i % 4}", "age": float(i), "y": i % 3} for i in range(60)]
        return {"path": str(write_csv(folder / "own.csv", table))}
    elif name == "folder":
        for site in ("north", "south"):
            x, y = rng.normal(size=(20, 3)), np.arange(20) % 2
            np.savez(folder / f"{site}.npz", x=x, y=y)
    else:
        return {}
    return {"path": str(folder)}


@pytest.mark.parametrize("method", ["pflego", "fedavg"])
@pytest.mark.parametrize("name", registry.names("data"))
def test_a_round_on_every_engine_that_fits(name, method, tmp_path):
    steps = {"pflego": {"beta": 0.01, "rho": 0.001, "server": "sgd"}, "fedavg": {"eta": 0.01}}[method]
    tree = {"data": {"name": name, **options(name, tmp_path)}, "method": {"name": method, "tau": 2, **steps}}
    recipe = Recipe.parse({**tree, "engine": {"kind": "loop"}})
    prepared = prepare(recipe, recipe.federation())
    setup, start, memory = ref.Game(prepared.clients.load), prepared.rounds.shared, prepared.rounds.memory
    sizes = setup.federation.sizes()
    cohort = sorted(setup.federation.existing.tolist(), key=lambda i: sizes[i])[:LARGEST_COHORT]
    rnd = ref.announced(setup, len(cohort))
    results = {}
    for kind in ("loop", "vmap", "fused"):
        engine = registry.load("engine", kind)()
        if engine.unfit(setup.load) is None:
            store = ref.store(setup, engine)
            played = ref.play(setup, start, memory, store, cohort, rnd, scored=True)
            assert played.refused == {}
            assert sum(int(counts["examples"]) for counts in played.scores.values()) > 0
            results[kind] = (played, store)
    loop, kept = results.pop("loop")
    trained = {**{f"{i} {key}": value for i in cohort for key, value in kept[i].items()}, **loop.shared}
    fresh = ref.store(setup)
    initial = {**{f"{i} {key}": value for i in cohort for key, value in fresh[i].items()}, **start}
    assert any(not torch.equal(value, initial[key]) for key, value in trained.items() if key in initial)
    for played, store in results.values():
        theirs = {**{f"{i} {key}": value for i in cohort for key, value in store[i].items()}, **played.shared}
        for key, value in trained.items():
            torch.testing.assert_close(theirs[key], value, rtol=1e-4, atol=1e-4, msg=f"{key}: {{}}".format)
