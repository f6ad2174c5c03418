"""Parameters, buffers and submodules may have any name that PyTorch allows."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch import nn

import coterie
import reference as ref
from coterie import registry
from coterie.core.method import Tree
from coterie.models.module import Own
from coterie.prepare import prepare
from coterie.recipe import Recipe
from coterie.streams import torch_seeded
from engines import METHODS, representatives, slow_unless

RESERVED = ("weight", "loss", "numbers", "head")
OTHERS = [
    ("loss", "weight", "personal", "visited"),
    ("visited", "pi", "alpha", "h"),
    ("c", "m1", "v", "initial"),
    ("__metadata__", "undone", "inverse_step", "m"),
    ("t", "optimum", "gamma", "c_i"),
    ("\0", " ", ":", "/"),
]
"""Names of a parameter, a buffer, a layer and a head that are in use elsewhere, or look unusual."""
Names = tuple[str, str, str, str]


class Named(nn.Module):
    """A layer, a gain, a counter of passes and a linear head, under given names."""

    def __init__(self, names: Names) -> None:
        super().__init__()
        self._names = names
        gain, count, layer, head = names
        with torch_seeded(0):
            self.register_parameter(gain, nn.Parameter(torch.ones(3)))
            self.register_buffer(count, torch.zeros(()))
            self.register_module(layer, nn.Linear(4, 3))
            self.register_module(head, nn.Linear(3, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gain, count, layer, head = (getattr(self, name) for name in self._names)
        if self.training:
            count += 1
        return head(torch.relu(gain * layer(x)))


def played(method: str, engine: str, names: Names, out: str | None = None) -> tuple[Tree, Tree, ref.Game]:
    """Return the shared model and the personal state of client 1 after two rounds, one of which it missed."""
    recipe = Recipe.parse({"run": {"seed": 3}, "engine": {"dtype": "float64"}, "method": {"name": method}})
    recipe = replace(recipe, model=Own(net=Named(names), head_name=names[3]))
    game = ref.Game(prepare(recipe, ref.federation((5, 3, 8), new=1)).clients.load)
    shared = game.method.init_shared(game.task)
    memory, kept = game.method.init_memory(game.task, shared), ref.store(game, registry.load("engine", engine)())
    for index, cohort in enumerate(([0, 1], [0]), 1):
        result = ref.play(game, shared, memory, kept, cohort, ref.announced(game, 2, index), scored=True)
        shared, memory = result.shared, result.memory
    return shared, kept[1], game


def renamed(tree: Tree, names: Names, plain: Names) -> Tree:
    """Return a tree of the model with given names under the names of the plain one."""
    gain, count, layer, head = names
    layers = [f"{part}.{of}" for part in (layer, head) for of in ("weight", "bias")]
    new = {name: place for place, name in enumerate((gain, count, *layers))}
    old = [plain[0], plain[1], *(f"{part}.{of}" for part in plain[2:] for of in ("weight", "bias"))]
    found = {}
    for name, value in tree.items():
        label = ""
        if name not in new and name.startswith("."):  # a method's own entry: .LABEL.NAME, or .NAME
            label, _, inner = name[1:].partition(".")
            label, name = (f".{label}.", inner) if inner else (name, "")
        found[label + (old[new[name]] if name else "")] = value
    return found


def pairs() -> list[tuple[str, str]]:
    """Return every method with the engines that can run it."""
    fused = [name for name in METHODS if issubclass(registry.load("method", name), coterie.core.method.FixedBody)]
    found = [(name, engine) for name in METHODS for engine in ("loop", "vmap")]
    return found + [(name, "fused") for name in fused]


PLAIN = ("gain", "count", "layer", "top")


def assert_names_do_not_matter(method: str, engine: str, names: Names) -> None:
    shared, personal, _ = played(method, engine, PLAIN)
    for tree, expected in zip(played(method, engine, names)[:2], (shared, personal), strict=True):
        found = renamed(tree, names, PLAIN)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], value) for name, value in expected.items())


def reserved() -> list[object]:
    """Return every method and engine with the names that once clashed, and some with a name that files reserve."""
    cases = [(*pair, names) for pair in pairs() for names in (RESERVED, OTHERS[3])]
    return [
        slow_unless(engine == "vmap" and (names is RESERVED or method in representatives()), method, engine, names)
        for method, engine, names in cases
    ]


@pytest.mark.parametrize(("method", "engine", "names"), reserved())
def test_names_in_use_elsewhere(method, engine, names):
    assert_names_do_not_matter(method, engine, names)


@pytest.mark.slow
@pytest.mark.parametrize("names", OTHERS)
@pytest.mark.parametrize(("method", "engine"), pairs())
def test_more_names_in_use_elsewhere(method, engine, names):
    assert_names_do_not_matter(method, engine, names)


@pytest.mark.parametrize("method", [slow_unless(name in ("fedavg", "pflego"), name) for name in METHODS])
@given(data=st.data())
@hypothesis_settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_name(method, data):
    text = st.text(st.characters(exclude_characters=".\0", exclude_categories=("Cs",)), min_size=1, max_size=6)
    names = tuple(data.draw(st.lists(text, min_size=4, max_size=4, unique=True)))
    assume(not any(hasattr(nn.Module(), name) or name == "_names" for name in names))
    assert_names_do_not_matter(method, "vmap", names)


class Bare(nn.Module):
    """A module with a top-level `weight` and a `loss`, as a user may write it."""

    def __init__(self, weight: str, loss: str) -> None:
        super().__init__()
        self._names = weight, loss
        self.register_parameter(weight, nn.Parameter(torch.zeros(3, 6)))
        self.register_parameter(loss, nn.Parameter(torch.zeros(3)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, loss = (getattr(self, name) for name in self._names)
        return nn.functional.linear(x, weight, loss)


@pytest.mark.parametrize("names", [("weight", "loss"), ("loss", "weight"), ("__metadata__", "loss")])
def test_a_bare_layer_is_trained_saved_and_loaded_like_any_other(names, tmp_path):
    """A `weight` once grew by 1.0 in each round of FedAvg, and a parameter called `loss` ended in a KeyError."""
    rng = np.random.default_rng(0)
    y = np.arange(30) % 3
    x = np.eye(3, 6)[y] * 3 + rng.normal(size=(30, 6)) / 4
    fed = coterie.Federation.from_arrays({name: (x[i::3], y[i::3]) for i, name in enumerate("abc")})
    options = {"method": coterie.methods.FedAvg(tau=5, eta=0.5), "head": "", "rounds": 3}
    expected = coterie.train(fed, model=Bare("w", "b"), **options)
    run = coterie.train(fed, model=Bare(*names), out=tmp_path / "run", **options)
    assert run.summary.existing.as_is.mean == expected.summary.existing.as_is.mean > 0.9
    loaded = coterie.load(tmp_path / "run", model=Bare(*names))
    for name, plain in zip(names, ("w", "b"), strict=True):
        assert torch.equal(run.shared[name], expected.shared[plain])
        assert torch.equal(loaded.shared[name], expected.shared[plain])
        assert torch.equal(loaded.model("a").state_dict()[name], expected.shared[plain])


def test_a_bare_linear_layer_stays_where_it_is_without_a_rate():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 4)).astype(np.float32), np.arange(30) % 2
    fed = coterie.Federation.from_arrays({name: (x[i::3], y[i::3]) for i, name in enumerate("abc")})
    layer = nn.Linear(4, 2)
    run = coterie.train(fed, model=layer, head="", method=coterie.methods.FedAvg(eta=0.0), rounds=3)
    assert torch.equal(run.shared["weight"], layer.weight)
