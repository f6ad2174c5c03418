"""Evaluation of existing and new users, as they are and after adaptation. It never changes their personal states."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coterie.clients import client
from coterie.clients.engine import Engine
from coterie.clients.setup import Setup
from coterie.core.method import Tree
from coterie.measure.protocols import Statistics
from coterie.storage.store import PersonalStore

Floats = NDArray[np.float64]
AT_ONCE = 1000
"""Number of clients whose personal states are held in memory at a time."""


class Scores(NamedTuple):
    """Scores of several clients under one protocol."""

    clients: list[int]
    accuracy: Floats
    """Score of each client on its examples, such as the share of right answers. NaN for a client without examples."""
    restricted: Floats
    """Score of each client when it chooses only among its own classes."""

    @classmethod
    def of(cls, counts: Mapping[int, Tree]) -> "Scores":
        """Compute the scores from what `client.score` counted for each client."""
        clients = sorted(counts)
        names = ("examples", "right", "restricted")
        columns = np.array([[float(counts[i][name]) for name in names] for i in clients]).reshape(-1, 3)
        examples = np.where(columns[:, 0] > 0, columns[:, 0], np.nan)
        return cls(clients, columns[:, 1] / examples, columns[:, 2] / examples)


class OnSplit(NamedTuple):
    """Scores of all clients on one split: existing users, then new users."""

    as_is: Scores
    adapted: Scores
    before: Scores
    after: Scores


class Evaluation(NamedTuple):
    """One evaluation of all clients."""

    test: OnSplit
    validation: OnSplit | None
    """Scores on validation examples, or None if there are no such examples. They serve to choose between models."""
    train_loss: float
    """Objective (1): sum over existing clients of N_i/N times the loss of their personal model as it is. NaN if there
    are no existing clients."""


def evaluate(
    engine: Engine,
    setup: Setup,
    shared: Tree,
    store: PersonalStore,
    adapt_steps: int,
    existing: Sequence[int],
    new: Sequence[int],
) -> Evaluation:
    """Score existing and new clients on their test and validation examples, and compute the training loss."""
    splits = [split for split in ("test", "validation") if split in setup.federation.splits]
    of_existing, of_new = (
        _both(engine, setup, shared, store, adapt_steps, clients, splits) for clients in (existing, new)
    )
    test, *validation = (OnSplit(*of_existing[split], *of_new[split]) for split in splits)
    return Evaluation(test, next(iter(validation), None), _train_loss(engine, setup, shared, store, existing))


def statistics(scores: Scores, sizes: Floats) -> Statistics:
    """Compute statistics over clients. Clients without examples are omitted."""
    tested = ~np.isnan(scores.accuracy)
    accuracy, sizes = scores.accuracy[tested], sizes[tested]
    if not len(accuracy):
        return Statistics()
    return Statistics(
        mean=float(accuracy.mean()),
        weighted_mean=float((accuracy * sizes).sum() / sizes.sum()),
        std=float(accuracy.std()),
        stderr=float(accuracy.std() / np.sqrt(len(accuracy))),
        bottom_decile=float(np.sort(accuracy)[len(accuracy) // 10]),
        restricted_mean=float(scores.restricted[tested].mean()),
    )


def _both(
    engine: Engine,
    setup: Setup,
    shared: Tree,
    store: PersonalStore,
    steps: int,
    clients: Sequence[int],
    splits: Sequence[str],
) -> dict[str, tuple[Scores, Scores]]:
    """Return the scores of clients as they are and adapted, for each split."""
    plain: dict[str, dict[int, Tree]] = {split: {} for split in splits}
    adapted: dict[str, dict[int, Tree]] = {split: {} for split in splits}
    for some in _parts(clients):
        personal = [store[i] for i in some]
        refreshed = engine.adapted_scores(setup, shared, some, personal, steps, splits)
        for split in splits:
            plain[split] |= engine.answers(setup, client.score, shared, some, personal, split=split)
            adapted[split] |= refreshed[split]
    return {split: (Scores.of(plain[split]), Scores.of(adapted[split])) for split in splits}


def _train_loss(engine: Engine, setup: Setup, shared: Tree, store: PersonalStore, clients: Sequence[int]) -> float:
    sizes, weighted = setup.federation.sizes(), 0.0
    for some in _parts(clients):
        found = engine.answers(setup, client.loss, shared, some, [store[i] for i in some], split="train")
        weighted += sum(float(sizes[i]) * float(tree["loss"]) for i, tree in found.items())
    return weighted / float(sizes[list(clients)].sum()) if len(clients) else math.nan


def _parts(clients: Sequence[int]) -> Iterator[Sequence[int]]:
    for start in range(0, len(clients), AT_ONCE):
        yield clients[start : start + AT_ONCE]
