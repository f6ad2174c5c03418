"""Every engine gives the loop's result, for every registered method."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import reference as ref
from coterie import registry
from coterie.engine.engine import Engine
from coterie.engine.loop import Loop
from coterie.engine.round import play_round
from coterie.engine.setup import Setup
from coterie.evaluate import evaluate
from coterie.models.model import Model
from coterie.models.own import Own
from coterie.recipe import Recipe
from coterie.streams import torch_seeded
from coterie.training import prepare

METHODS = registry.names("methods")
ENGINES = ["vmap", "fused"]
TOLERANCE = {"float64": 1e-9, "float32": 1e-5}
SIZES = (5, 3, 8, 1, 30, 2, 9)  # heads of 3, 2, 3, 1, 3, 2, 3


class Norm(nn.Module):
    """A convolution and a BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3, padding=1)
        self.norm = nn.BatchNorm2d(3)
        self.fc = nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(torch.relu(self.norm(self.conv(x.reshape(-1, 1, 2, 2)))).flatten(1))


def model(kind: str) -> Model:
    with torch_seeded(0):
        if kind == "deep head":
            head = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 5))
            return Own(net=nn.Sequential(nn.Linear(4, 3), nn.ReLU(), head), head_name="2")
        if kind.startswith("norm"):
            return Own(net=Norm(), head_name="fc", buffers=kind.split()[1])
    options = {"mlp": {"hidden": [6]}, "logreg": {}}
    return registry.load("models", kind)(**options[kind])


def game(method: str, kind: str = "mlp", dtype: str = "float64", batch: int = 0) -> Setup:
    recipe = Recipe.parse({"run": {"seed": 3}, "engine": {"dtype": dtype, "kind": "loop"}, "method": {"name": method}})
    if batch:
        recipe = replace(recipe, method=replace(recipe.method, batch_size=batch))
    sizes = (5, 3, 8, 3, 8, 2) if kind.startswith("norm") else SIZES  # BatchNorm cannot take a single example
    return prepare(replace(recipe, model=model(kind)), ref.federation(sizes, new=1)).setup


def engine(name: str, setup: Setup, **options) -> Engine:
    made = registry.load("engine", name)(**options)
    if reason := made.unfit(setup):
        pytest.skip(f"{name}: {reason}")
    return made


def assert_equal(one, other, tolerance):
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], rtol=tolerance, atol=tolerance, msg=lambda m: f"{name}: {m}")


def assert_same_rounds(setup: Setup, other: Engine, cohorts: list[list[int]], tolerance: float) -> None:
    start = setup.method.init_shared(setup.task)
    sides = []
    for each in (Loop(), other):
        shared, memory, store = start, setup.method.init_memory(setup.task, start), ref.store(setup)
        plays = []
        for index, cohort in enumerate(cohorts, 1):
            rnd = ref.announced(setup, len(cohort), index)
            plays.append(play_round(each, setup, shared, memory, store, cohort, rnd, scored=True))
            shared, memory = plays[-1].shared, plays[-1].memory
        existing, new = setup.federation.existing.tolist(), setup.federation.new.tolist()
        sides.append((plays, store, evaluate(each, setup, shared, store, 3, existing, new)))
    (plays, store, evaluation), (their_plays, their_store, their_evaluation) = sides
    for play, theirs in zip(plays, their_plays, strict=True):
        assert_equal(play.shared, theirs.shared, tolerance)
        assert_equal(play.memory, theirs.memory, tolerance)
        assert play.loss == pytest.approx(theirs.loss, rel=tolerance)
        assert play.refused == theirs.refused == []
        assert replace(play.cost, seconds=0) == replace(theirs.cost, seconds=0)
        assert play.scores.keys() == theirs.scores.keys()
        for i, counts in play.scores.items():
            assert {name: int(n) for name, n in counts.items()} == {
                name: int(n) for name, n in theirs.scores[i].items()
            }
    for i in range(len(setup.federation.ids)):
        assert_equal(store[i], their_store[i], tolerance)
    assert evaluation.train_loss == pytest.approx(their_evaluation.train_loss, rel=tolerance)
    for scores, theirs in zip(evaluation[:4], their_evaluation[:4], strict=True):
        assert scores.clients == theirs.clients
        assert scores.accuracy.tolist() == theirs.accuracy.tolist()
        assert scores.restricted.tolist() == theirs.restricted.tolist()


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("method", METHODS)
def test_unequal_clients_of_different_heads(method, name, dtype):
    """Sizes from 1 to 30, heads from 1 to 3 outputs, everyone, some, a cohort of one, a one-example client alone."""
    setup = game(method, dtype=dtype)
    cohorts = [[0, 1, 2, 3, 4, 5], [4, 1], [2], [3]]
    assert_same_rounds(setup, engine(name, setup), cohorts, TOLERANCE[dtype])


@pytest.mark.parametrize("kind", ["deep head", "logreg", "norm average", "norm local"])
@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("method", METHODS)
def test_other_models(method, name, kind):
    setup = game(method, kind)
    assert_same_rounds(setup, engine(name, setup), [[0, 1, 2, 3, 4], [1, 3]], 1e-9)


@pytest.mark.parametrize("method", [name for name in METHODS if hasattr(registry.load("methods", name), "batch_size")])
def test_minibatches(method):
    setup = game(method, batch=2)
    assert_same_rounds(setup, engine("vmap", setup), [[0, 1, 2, 3, 4, 5], [4, 2]], 1e-9)


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("method", METHODS)
def test_a_cohort_that_does_not_fit_into_memory_is_done_in_turns(method, name):
    setup = game(method)
    assert_same_rounds(setup, engine(name, setup, memory=1e-9), [[0, 1, 2, 3, 4, 5]], 1e-9)


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("method", METHODS)
def test_a_client_that_sends_nonsense_is_refused(method, name):
    setup = game(method)
    x = setup.federation.x.clone()
    x[setup.federation.splits["train"].row(1)] = 1e300
    setup = replace(setup, federation=replace(setup.federation, x=x))
    shared = setup.method.init_shared(setup.task)
    results = []
    for each in (Loop(), engine(name, setup)):
        memory, store = setup.method.init_memory(setup.task, shared), ref.store(setup)
        played = play_round(each, setup, shared, memory, store, [0, 1, 4], ref.announced(setup, 3))
        assert played.refused == [1]
        results.append((played, store))
    (loop, store), (other, their_store) = results
    assert_equal(loop.shared, other.shared, 1e-9)
    assert loop.cost.bytes_up == other.cost.bytes_up
    for i in range(len(SIZES)):
        assert_equal(store[i], their_store[i], 1e-9)
