"""Games for engines, and what it means that two engines play them alike."""

import inspect
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import normalize
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import weight_norm

import reference as ref
from coterie import registry
from coterie.clients.engine import Engine
from coterie.clients.loop import Loop
from coterie.core.method import FixedBody
from coterie.data.examples import Examples, Groups
from coterie.data.federation import Federation
from coterie.data.partition.natural import Natural
from coterie.errors import UserError
from coterie.measure.evaluate import evaluate
from coterie.models.model import Model
from coterie.models.module import Own
from coterie.prepare import prepare
from coterie.recipe import Recipe
from coterie.streams import torch_seeded

METHODS = registry.names("method")
SIZES = (9, 3, 12, 1, 30, 2, 9)
"""Of clients with heads of 3, 2, 3, 1, 3, 2, 3. Two of them, of 9 and 12, vmap puts together: one has padding."""
HEADS = ("cosine", "frozen head", "unit rows", "weight norm")
"""Models with a head that is not a plain linear layer."""
STEPS = 7  # local ones, of methods that have more by default


class Norm(nn.Module):
    """A convolution and a BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3, padding=1)
        self.norm = nn.BatchNorm2d(3)
        self.fc = nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(torch.relu(self.norm(self.conv(x.reshape(-1, 1, 2, 2)))).flatten(1))


class Counting(nn.Module):
    """A network with a buffer that does not mix examples: it counts passes."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(4, 3)
        self.register_buffer("passes", torch.zeros(()))
        self.fc = nn.Linear(3, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.passes += 1
        return self.fc(torch.relu(self.hidden(x)))


class Cosine(nn.Linear):
    """A head whose outputs are cosines of the angles between features and rows of the weight, times ten."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 10 * normalize(x, dim=-1) @ normalize(self.weight, dim=-1).T


class UnitRows(nn.Module):
    """A parametrization: rows of length one."""

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return normalize(weight, dim=-1)

    def right_inverse(self, weight: torch.Tensor) -> torch.Tensor:
        return weight


class UnitFeatures(nn.Module):
    """The features of `Cosine`."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 10 * normalize(x, dim=-1)


def with_head(kind: str) -> nn.Sequential:
    """Return a network with the same body and one of several heads, called 3."""
    body = [nn.Linear(4, 3), nn.Tanh(), nn.Identity()]
    if kind == "cosine":
        return nn.Sequential(*body, Cosine(3, 5))
    if kind == "unit rows":
        net = nn.Sequential(*body[:2], UnitFeatures(), nn.Linear(3, 5, bias=False))
        parametrize.register_parametrization(net[3], "weight", UnitRows())
        return net
    net = nn.Sequential(*body, nn.Linear(3, 5))
    if kind == "weight norm":
        weight_norm(net[3])
    if kind == "frozen head":
        net[3].requires_grad_(False)
    return net


def model(kind: str) -> Model:
    with torch_seeded(0):
        if kind in HEADS:
            return Own(net=with_head(kind), head_name="3")
        if kind == "deep head":
            head = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 5))
            return Own(net=nn.Sequential(nn.Linear(4, 3), nn.ReLU(), head), head_name="2")
        if kind.startswith("norm"):
            return Own(net=Norm(), head_name="fc", buffers=kind.split()[1])
        if kind == "counter":
            return Own(net=Counting(), head_name="fc")
        if kind == "sequences":
            net = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 5))
            return Own(net=net, head_name="3")
    options = {"numbers": {"hidden": [6]}, "mlp": {"hidden": [6]}, "logreg": {}}
    return registry.load("model", "mlp" if kind == "numbers" else kind)(**options[kind])


def game(method: str, kind: str = "mlp", dtype: str = "float64", batch: int = 0, **chosen: Any) -> ref.Game:
    recipe = Recipe.parse({"run": {"seed": 3}, "engine": {"dtype": dtype, "kind": "loop"}, "method": {"name": method}})
    options = {"tau": min(STEPS, recipe.method.tau)} if hasattr(recipe.method, "tau") else {}
    options |= chosen | ({"batch_size": batch} if batch else {})
    recipe = replace(recipe, method=replace(recipe.method, **options))
    clients = {"numbers": numbers, "sequences": sequences}.get(kind, lambda: ref.federation(SIZES, new=1))()
    return ref.Game(prepare(replace(recipe, model=model(kind)), clients).clients.load)


def named_options() -> Iterator[tuple[str, str, str]]:
    """(method, field, value) for every word that a method's field takes, but its default."""
    for method in METHODS:
        cls = registry.load("method", method)
        for field in fields(cls):
            for value in _words(get_type_hints(cls)[field.name]):
                if value != field.default:
                    yield method, field.name, value


def representatives() -> list[str]:
    """Return one method for each distinct client code: other methods differ from it on the server only."""
    found: dict[str, str] = {}
    for method in ("fedavg", *METHODS):
        cls = registry.load("method", method)
        names = ("local_update", "on_features", "adapt", "prepare", "receive", "read", "personal_params", "predict")
        parts = [inspect.getsource(getattr(cls, name)) for name in names if hasattr(cls, name)]
        found.setdefault(re.sub(r"self\.(eta|beta)\b", "rate", "".join(parts)), method)
    return sorted(found.values())


def fitting(engines: Sequence[str] = ("vmap", "fused"), kind: str = "mlp") -> list[tuple[str, str]]:
    """Return (method, engine) for the engines that can compute a method on a kind of model."""
    mixes = kind.startswith("norm")  # BatchNorm, for which a cohort cannot share a batch
    fixed = [name for name in METHODS if issubclass(registry.load("method", name), FixedBody)]
    return [
        (method, engine)
        for method in METHODS
        for engine in engines
        if engine != "fused" or (method in fixed and not mixes)
    ]


def slow_unless(chosen: bool, *values: Any) -> Any:
    """Return a parameter set that belongs to `make test-all` only, unless it is chosen for the default tests."""
    return pytest.param(*values, marks=() if chosen else pytest.mark.slow)


def takes_epochs(method: str) -> bool:
    """Return whether a method's local work can be given in epochs."""
    cls = registry.load("method", method)
    return any(field.name == "tau" and _accepts(cls, "2 epochs") for field in fields(cls))


def _accepts(cls: Any, tau: str) -> bool:
    try:
        cls(tau=tau)
    except UserError:
        return False
    return True


def _words(kind: Any) -> list[str]:
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    return [word for part in get_args(kind) for word in _words(part)]


def numbers() -> Federation:
    """Targets that are a linear function of the inputs, another one for each client."""
    rng = np.random.default_rng(7)
    clients = {}
    for i, size in enumerate(SIZES):
        x, w = rng.normal(size=(size + 6, 4)), rng.normal(size=4)
        clients[f"client-{i}"] = (x[:size], x[:size] @ w, x[size:], x[size:] @ w)
    return Federation.from_arrays(clients, new=["client-6"], regression=True)


def sequences() -> Federation:
    """Five tokens an example, the next token at each position; the end of every other one is padding."""
    rng = np.random.default_rng(7)
    tokens = rng.integers(0, 5, size=(sum(SIZES) + 6 * len(SIZES), 6))
    x, y = tokens[:, :-1], tokens[:, 1:].copy()
    y[::2, 3:] = -1
    train = sum(SIZES)
    owner = [np.repeat(np.arange(len(SIZES)), each) for each in (SIZES, 6)]
    groups = Groups(*owner, tuple(f"client-{i}" for i in range(len(SIZES))))
    examples = Examples(x[:train], y[:train], x[train:], y[train:], tuple("abcde"), groups)
    return Federation.assemble(examples, Natural(new_users=0.15).assign(examples, rng))


def assert_equal(one, other, tolerance):
    assert one.keys() == other.keys()
    for name, value in one.items():
        named = f"{name}: {{}}".format
        torch.testing.assert_close(value, other[name], rtol=tolerance, atol=tolerance, msg=named)


def assert_same_rounds(
    setup: ref.Game, other: Engine, cohorts: list[list[int]], tolerance: float, adapt_steps: int = 3
) -> None:
    """Play rounds and an evaluation on the loop and on another engine, and compare everything they leave."""
    start = setup.method.init_shared(setup.task)
    existing, new = setup.federation.existing.tolist(), setup.federation.new.tolist()
    sides = []
    for engine in (Loop(), other):
        kept = ref.store(setup, engine)
        shared, memory = start, setup.method.init_memory(setup.task, start)
        plays = []
        for index, cohort in enumerate(cohorts, 1):
            rnd = ref.announced(setup, len(cohort), index)
            plays.append(ref.play(setup, shared, memory, kept, cohort, rnd, scored=True))
            shared, memory = plays[-1].shared, plays[-1].memory
        sides.append((plays, kept, evaluate(kept, shared, adapt_steps, existing, new)))
    (plays, store, evaluation), (their_plays, their_store, their_evaluation) = sides
    for play, theirs in zip(plays, their_plays, strict=True):
        assert_equal(play.shared, theirs.shared, tolerance)
        assert_equal(play.memory, theirs.memory, tolerance)
        assert play.loss == pytest.approx(theirs.loss, rel=tolerance)
        assert play.refused == theirs.refused == {}
        assert replace(play.cost, seconds=0) == replace(theirs.cost, seconds=0)
        assert play.scores.keys() == theirs.scores.keys()
        for i, counts in play.scores.items():
            assert {name: float(n) for name, n in counts.items()} == pytest.approx(
                {name: float(n) for name, n in theirs.scores[i].items()}, rel=tolerance
            )
    for i in range(len(setup.federation.ids)):
        assert_equal(store[i], their_store[i], tolerance)
    assert evaluation.train_loss == pytest.approx(their_evaluation.train_loss, rel=tolerance)
    splits = ((*evaluation.test, evaluation.train), (*their_evaluation.test, their_evaluation.train))
    for scores, theirs in zip(*splits, strict=True):
        assert scores.clients == theirs.clients
        assert scores.accuracy.tolist() == pytest.approx(theirs.accuracy.tolist(), rel=tolerance)
        assert scores.restricted.tolist() == pytest.approx(theirs.restricted.tolist(), rel=tolerance)
