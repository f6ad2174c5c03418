"""A client needs its own data and the announcement, and nothing else: one lives in a separate process."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import reference as ref
from coterie.clients import work
from coterie.clients.engine import Call, Group
from coterie.clients.loop import Loop
from coterie.clients.workload import Workload
from coterie.core.method import Reply, Round, Tree
from coterie.core.tree import unstack
from coterie.models.mlp import MLP
from coterie.prepare import prepare
from coterie.recipe import Recipe
from coterie.settings import settings
from engines import METHODS

COHORTS = ([0, 1, 2], [0, 2], [1, 2], [0, 1])
"""Client 1 misses the second round."""
WHO = 1


@settings
class Recording(Loop):
    """The loop engine, which also keeps what one client's functions return."""

    def each_client(self, load: Workload, call: Call) -> Iterator[Group]:
        for group in super().each_client(load, call):
            function = getattr(call.function, "func", call.function)
            if call.clients[group.places[0]] == WHO and function in (work.told_update, work.score_updated):
                seen.setdefault(function.__name__, []).append([rows(tree)[0] for tree in group.results])
            yield group


seen: dict[str, list[list[Tree]]] = {}


class Posting(ref.Kept):
    """Simulated clients that also keep the last letter to one client."""

    def keep(self, shared: Tree, letters: Mapping[int, Tree], rnd: Round) -> None:
        self.letter = letters.get(WHO, {})
        super().keep(shared, letters, rnd)


def rows(tree: Tree) -> list[Tree]:
    """Return the trees of a group of one client."""
    return unstack(tree, 1)


def simulate(method: str, folder: Path) -> dict[str, Tree]:
    """Play rounds in the simulator. Returns what client 1 should have, and writes what it is told."""
    recipe = Recipe.parse({"run": {"seed": 3}, "engine": {"dtype": "float64"}, "method": {"name": method}})
    prepared = prepare(replace(recipe, model=MLP(hidden=[4])), ref.federation((5, 3, 8)))
    game = ref.Game(prepared.clients.load)
    kept = Posting(game.load, Recording())
    seen.clear()
    folder.mkdir()
    (folder / "announcement.json").write_text(json.dumps(prepared.announcement.to_json()))
    shared = game.method.init_shared(game.task)
    memory = game.method.init_memory(game.task, shared)
    expected, told, calls = {"start": kept[WHO]}, [], 0
    keep(folder / "sent-0.safetensors", shared)
    for place, cohort in enumerate(COHORTS):
        rnd = ref.announced(game, len(cohort), place + 1)
        played = ref.play(game, shared, memory, kept, cohort, rnd, scored=True)
        shared, memory = played.shared, played.memory
        keep(folder / f"sent-{place + 1}.safetensors", shared)
        told.append({"round": asdict(rnd), "takes_part": WHO in cohort})
        if WHO in cohort:
            reply = Reply(*seen["told_update"][calls])
            expected |= {f"{part}-{place}": tree for part, tree in reply._asdict().items()}
            keep(folder / f"letter-to-{place}.safetensors", kept.letter)
            expected |= {f"updated-{place}": tensors_of(played.scores[WHO]), f"kept-{place}": kept[WHO]}
            calls += 1
    (folder / "rounds.json").write_text(json.dumps(told))
    scored = kept.score(shared, [WHO], 3)
    expected |= {"score": tensors_of(scored.as_is["test"][WHO]), "adapted": tensors_of(scored.adapted["test"][WHO])}
    return {**expected, "train": tensors_of(scored.as_is["train"][WHO])}


def tensors_of(counts: dict[str, float]) -> Tree:
    kinds = {name: torch.float64 if isinstance(count, float) else None for name, count in counts.items()}
    return {name: torch.tensor(count, dtype=kinds[name]) for name, count in counts.items()}


def keep(path: Path, tree: Tree) -> None:
    save_file({name: value.detach().contiguous().clone() for name, value in tree.items()}, path)


@pytest.fixture(scope="module")
def lives(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, dict[str, Tree]]]:
    """Simulate every method, then let one other process live client 1's life for all of them."""
    root = tmp_path_factory.mktemp("lives")
    expected = {method: simulate(method, root / method) for method in METHODS}
    federation = ref.federation((5, 3, 8))
    arrays = {"name": np.array(federation.ids[WHO])}
    for split in ("train", "test"):
        rows = federation.splits[split].row(WHO)
        arrays[f"x_{split}"] = federation.x[rows].numpy()
        arrays[f"y_{split}"] = np.array([federation.labels[label] for label in federation.y[rows]])
    np.savez(root / "own.npz", **arrays)
    script = Path(__file__).with_name("one_client.py")
    away = {key: value for key, value in os.environ.items() if key not in ("COTERIE_DATA", "PYTHONPATH")}
    away["PYTHONPATH"] = str(Path(work.__file__).parents[2])
    subprocess.run([sys.executable, str(script), str(root)], check=True, cwd=root, env=away, timeout=240)
    return root, expected


@pytest.mark.parametrize("method", METHODS)
def test_a_client_in_its_own_process_has_the_simulators_bits(method, lives):
    root, expected = lives
    for name, tree in expected[method].items():
        found = load_file(root / method / f"{name}.safetensors")
        assert found.keys() == tree.keys(), name
        for key, value in tree.items():
            assert torch.equal(found[key], value), f"{name}: {key}"


def test_the_announcement_holds_no_examples(lives):
    """It is small, and its only numbers are settings, the label space and the shape of an input."""
    root, _ = lives
    for method in METHODS:
        told = json.loads((root / method / "announcement.json").read_text())
        assert set(told) == {
            *("method", "model", "labels", "classes", "num_outputs", "inputs", "objective", "seed", "dtype")
        }
        assert told["inputs"] == {"shape": [4], "tokens": None, "is_graph": False}
        assert len(json.dumps(told)) < 2000
