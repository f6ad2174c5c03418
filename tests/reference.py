"""An independent implementation in NumPy: one hidden layer with ReLU, softmax cross-entropy, gradients by hand."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from coterie import Federation
from coterie.clients.engine import Engine
from coterie.clients.loop import Loop
from coterie.clients.simulated import Simulated
from coterie.clients.workload import Workload
from coterie.core.method import Data, Labels, Method, Round, Task, Tree
from coterie.models.mlp import MLP
from coterie.models.model import Model
from coterie.prepare import prepare
from coterie.recipe import Recipe
from coterie.server.round import Played, play_round

BODY = ("body.1.weight", "body.1.bias")
HEAD = ("head.weight", "head.bias")
Arrays = dict[str, np.ndarray]


def preactivations(params: Arrays, x: np.ndarray) -> np.ndarray:
    return x.reshape(len(x), -1) @ params["body.1.weight"].T + params["body.1.bias"]


def outputs(params: Arrays, x: np.ndarray) -> np.ndarray:
    return np.maximum(preactivations(params, x), 0) @ params["head.weight"].T + params["head.bias"]


def loss_and_gradient(params: Arrays, x: np.ndarray, y: np.ndarray) -> tuple[float, Arrays]:
    """The mean cross-entropy of the net and its gradient over all four arrays."""
    V = params["head.weight"]
    pre = preactivations(params, x)
    hidden = np.maximum(pre, 0)
    scores = outputs(params, x)
    scores = scores - scores.max(axis=1, keepdims=True)
    p = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    loss = -np.log(p[np.arange(len(y)), y]).mean()
    delta = p.copy()
    delta[np.arange(len(y)), y] -= 1
    delta /= len(y)
    back = (delta @ V) * (pre > 0)
    gradient = {
        "body.1.weight": back.T @ x.reshape(len(x), -1),
        "body.1.bias": back.sum(0),
        "head.weight": delta.T @ hidden,
        "head.bias": delta.sum(0),
    }
    return float(loss), gradient


def step(params: Arrays, gradient: Arrays, rate: float, names: tuple[str, ...]) -> Arrays:
    return {**params, **{name: params[name] - rate * gradient[name] for name in names}}


def arrays(tree: dict[str, Tensor]) -> Arrays:
    return {name: value.detach().numpy().copy() for name, value in tree.items()}


def assert_same(tree: dict[str, Tensor], expected: Arrays, tolerance: float = 1e-12) -> None:
    assert tree.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(tree[name].numpy(), value, rtol=0, atol=tolerance, err_msg=name)


def federation(sizes: tuple[int, ...] = (5, 3, 8, 1), features: int = 4, new: int = 0) -> Federation:
    """Clients of different size with 3, 2, 3, 1, 3, 2, ... classes of their own, the last `new` of them held out."""
    rng = np.random.default_rng(7)
    clients = {}
    for i, size in enumerate(sizes):
        own = (np.arange((3, 2, 3, 1)[i % 4]) + i) % 5
        y = np.resize(own, size)
        y_test = np.resize(np.unique(y), 6)
        clients[f"client-{i}"] = (rng.normal(size=(size, features)), y, rng.normal(size=(6, features)), y_test)
    held_out = list(clients)[len(clients) - new :]
    return Federation.from_arrays(clients, new=held_out)


def twins(number: int) -> Federation:
    """Clients with the same examples."""
    x, y = np.random.default_rng(0).normal(size=(6, 4)), np.arange(6) % 3
    return Federation.from_arrays({f"c{i}": (x, y, x, y) for i in range(number)})


@dataclass(frozen=True)
class Game:
    """A small run before its first round, with everything that a test looks at."""

    load: Workload

    @property
    def method(self) -> Any:
        return self.load.work.method

    @property
    def task(self) -> Task:
        return self.load.work.task

    @property
    def federation(self) -> Federation:
        return self.load.federation

    @property
    def labels(self) -> Labels:
        return self.load.work.labels

    @property
    def seed(self) -> int:
        return self.load.work.seed

    def data(self, client: int, split: str, index: int) -> Data:
        return self.load.data(client, split, index)

    def having(self, method: Method | None = None, federation: Federation | None = None) -> "Game":
        """Return the game with another method or another federation."""
        work = replace(self.load.work, method=method or self.method)
        return Game(replace(self.load, work=work, federation=federation or self.federation))


class Kept(Simulated):
    """Simulated clients whose personal states are read and written by `kept[client]`."""

    def __getitem__(self, client: int) -> Tree:
        return self.personal(client)

    def __setitem__(self, client: int, personal: Tree) -> None:
        self.store[client] = personal


def setup(method: Method, clients: Federation | None = None, model: Model | None = None) -> Game:
    """Return a small game in float64 on the loop engine."""
    recipe = Recipe.parse({"run": {"seed": 3}, "engine": {"dtype": "float64", "kind": "loop"}})
    prepared = prepare(replace(recipe, method=method, model=model or MLP(hidden=[3])), clients or federation())
    return Game(prepared.clients.load)


def announced(setup: Game, r: float, index: int = 1) -> Round:
    sizes = setup.federation.sizes()[setup.federation.existing]
    return setup.method.plan(Round(index, len(sizes), int(sizes.sum()), r, setup.seed))


def examples(setup: Game, client: int) -> tuple[np.ndarray, np.ndarray]:
    data = setup.federation.data(client, "train", setup.labels)
    return data.x.numpy(), data.y.numpy()


def store(setup: Game, engine: Engine | None = None) -> Kept:
    """Return clients that nobody has visited yet, on the reference engine unless another one is given."""
    return Kept(setup.load, engine or Loop())


def play(
    setup: Game, shared: Tree, memory: Tree, kept: Kept, cohort: list[int], rnd: Round, scored: bool = False
) -> Played:
    """Play a round."""
    return play_round(setup.method, setup.task, kept, shared, memory, cohort, rnd, scored)
