"""What is measured: existing users as they are and adapted, new users before and after. Never writes to the store."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.engine.round import Setup
from coterie.engine.store import PersonalStore
from coterie.method import Data, Tree

Floats = NDArray[np.float64]


class Score(NamedTuple):
    """A client's share of correct answers on its test split; not a number where it has none."""

    accuracy: float
    restricted: float
    """The same, choosing among the client's own classes only."""


class Scores(NamedTuple):
    """The scores of several clients under one protocol."""

    clients: list[int]
    accuracy: Floats
    restricted: Floats

    @classmethod
    def of(cls, clients: Sequence[int], scores: Sequence[Score]) -> "Scores":
        columns = np.array(scores, dtype=np.float64).reshape(-1, 2)
        return cls(list(clients), columns[:, 0], columns[:, 1])


class Evaluation(NamedTuple):
    """One evaluation of all clients."""

    as_is: Scores
    adapted: Scores
    before: Scores
    after: Scores
    train_loss: float
    """Objective (1): sum over the existing clients of N_i/N times the loss of the personal model as it is."""


def evaluate(setup: Setup, shared: Tree, store: PersonalStore, adapt_steps: int) -> Evaluation:
    existing, new = setup.federation.existing.tolist(), setup.federation.new.tolist()
    sizes = setup.federation.sizes()[existing]
    losses = np.array(list(_losses(setup, shared, store, existing)))
    return Evaluation(
        as_is=_scores(setup, shared, (store[i] for i in existing), existing),
        adapted=_scores(setup, shared, _adapted(setup, shared, store, existing, adapt_steps), existing),
        before=_scores(setup, shared, (setup.create(i) for i in new), new),
        after=_scores(setup, shared, _adapted(setup, shared, store, new, adapt_steps), new),
        train_loss=float((losses * sizes).sum() / sizes.sum()),
    )


def score(setup: Setup, client: int, shared: Tree, personal: Tree) -> Score:
    """One client's model on its own test split."""
    data = setup.federation.data(client, "test", setup.labels)
    if not len(data.y):
        return Score(float("nan"), float("nan"))
    with torch.no_grad():
        outputs = setup.method.predict(setup.task, shared, personal, data.x)
    accuracy = float((outputs.argmax(1) == data.y).double().mean())
    own = setup.federation.own(client)
    if setup.labels == "local":
        own = torch.arange(len(own), device=own.device)
    return Score(accuracy, float((own[outputs[:, own].argmax(1)] == data.y).double().mean()))


def statistics(scores: Scores, sizes: Floats) -> dict[str, Any]:
    """Over clients. `std` is the population's, `stderr` is std/sqrt(n), the bottom decile is sorted[n//10]."""
    tested = ~np.isnan(scores.accuracy)
    accuracy, sizes = scores.accuracy[tested], sizes[tested]
    if not len(accuracy):
        return dict.fromkeys(("mean", "weighted_mean", "std", "stderr", "bottom_decile", "restricted_mean"))
    return {
        "mean": float(accuracy.mean()),
        "weighted_mean": float((accuracy * sizes).sum() / sizes.sum()),
        "std": float(accuracy.std()),
        "stderr": float(accuracy.std() / np.sqrt(len(accuracy))),
        "bottom_decile": float(np.sort(accuracy)[len(accuracy) // 10]),
        "restricted_mean": float(scores.restricted[tested].mean()),
    }


def _scores(setup: Setup, shared: Tree, personal: Iterator[Tree], clients: list[int]) -> Scores:
    each = setup.engine.each_client(lambda client, mine: score(setup, client, shared, mine), clients, personal)
    return Scores.of(clients, list(each))


def _adapted(setup: Setup, shared: Tree, store: PersonalStore, clients: list[int], steps: int) -> Iterator[Tree]:
    def adapt(mine: Tree, data: Data) -> Tree:
        return setup.adapt(shared, mine, data, steps)

    personal = (store[i] for i in clients)
    adapted: Iterator[Tree] = setup.engine.each_client(adapt, personal, (setup.train_data(i, 0) for i in clients))
    return adapted


def _losses(setup: Setup, shared: Tree, store: PersonalStore, clients: list[int]) -> Iterator[float]:
    def loss(mine: Tree, data: Data) -> float:
        with torch.no_grad():
            outputs = setup.method.predict(setup.task, shared, mine, data.x)
            return float(setup.task.mean_loss(outputs, data))

    losses: Iterator[float] = setup.engine.each_client(
        loss, (store[i] for i in clients), (setup.train_data(i, 0) for i in clients)
    )
    return losses
