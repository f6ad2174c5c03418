"""Evaluation: existing users as they are and adapted, new users before and after adaptation. It changes nothing."""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coterie.clients.clients import Clients, Counts
from coterie.core.tree import Tree
from coterie.measure.protocols import Existing, Figures, New, Statistics
from coterie.measure.record import Evaluated

Floats = NDArray[np.float64]
AT_ONCE = 1000
"""Number of clients whose personal states are in memory together."""


class Scores(NamedTuple):
    """The scores of several clients under one protocol."""

    clients: list[int]
    accuracy: Floats
    """Score on the client's examples, such as the share of right answers; NaN if it has no examples."""
    restricted: Floats
    """Score if only the client's own classes can be chosen."""
    loss: Floats
    """Mean loss on the client's examples; NaN if it has no examples."""
    train_loss: Floats
    """Mean loss on the client's training examples; NaN if it is not known."""

    @classmethod
    def of(cls, counts: Counts, train: Counts | None = None) -> "Scores":
        """Compute scores from the counts of each client, and the training loss from its counts on training examples."""
        clients = sorted(counts)
        names = ("examples", "right", "restricted", "loss")
        columns = np.array([[counts[i][name] for name in names] for i in clients], dtype=np.float64).reshape(-1, 4)
        examples = np.where(columns[:, 0] > 0, columns[:, 0], np.nan)
        fits = [(train or {}).get(i) for i in clients]
        losses = np.array([fit["loss"] / fit["examples"] if fit else math.nan for fit in fits], dtype=np.float64)
        right, restricted, loss = (columns[:, 1:] / examples[:, None]).T
        return cls(clients, right, restricted, loss, losses)

    def only(self, chosen: Collection[int]) -> "Scores":
        """Return the scores of the chosen clients."""
        kept = [place for place, client in enumerate(self.clients) if client in chosen]
        return Scores([self.clients[place] for place in kept], *(column[kept] for column in self[1:]))


class OnSplit(NamedTuple):
    """The scores of all clients on one of their splits: existing users, then new ones."""

    as_is: Scores
    adapted: Scores
    before: Scores
    after: Scores


class Evaluation(NamedTuple):
    """One evaluation of all clients."""

    test: OnSplit
    validation: OnSplit | None
    """Scores for choosing between models, if examples were kept for that."""
    train_loss: float
    """Objective (1): the loss of each existing client's model as it is, weighted by N_i/N. NaN without such clients."""
    train: Scores
    """Scores of existing clients as they are, on training examples."""
    stored_bytes: float | None
    """Mean over existing clients of the size of what each keeps for itself. None without such clients."""


def evaluate(
    clients: Clients, shared: Tree, adapt_steps: int, existing: Sequence[int], new: Sequence[int]
) -> Evaluation:
    """Evaluate existing and new clients on all splits."""
    stored = 0
    found: dict[str, list[Counts]] = {split: [{}, {}, {}, {}] for split in ("train", *clients.splits)}
    for group, who in enumerate((existing, new)):
        for some in _parts(who):
            scored = clients.score(shared, some, adapt_steps)
            for split, counts in found.items():
                counts[2 * group] |= scored.as_is[split]
                counts[2 * group + 1] |= scored.adapted[split]
            if who is existing:
                stored += sum(scored.stored_bytes.values())
    train, test, *validation = ([*map(Scores.of, counts, found["train"])] for counts in found.values())
    sizes, loss, number = clients.sizes()[train[0].clients].astype(np.float64), train[0].loss, len(train[0].clients)
    return Evaluation(
        OnSplit(*test),
        OnSplit(*validation[0]) if validation else None,
        float((sizes * loss).sum() / sizes.sum()) if number else math.nan,
        train[0],
        stored / number if number else None,
    )


def measured(clients: Clients, evaluation: Evaluation, participants: Scores) -> Evaluated:
    """Turn an evaluation into statistics over clients."""
    test, validation = _figures(clients, "test", evaluation.test), None
    if evaluation.validation is not None:
        validation = _figures(clients, "validation", evaluation.validation)
    existing = replace(test.existing, participants=statistics(participants, _sizes(clients, "test", participants)))
    loss = evaluation.train_loss if math.isfinite(evaluation.train_loss) else None
    train = statistics(evaluation.train, _sizes(clients, "train", evaluation.train))
    return Evaluated(existing, test.new, loss, validation, train)


def among(clients: Clients, scores: OnSplit, chosen: Collection[int]) -> Figures:
    """Return statistics on test examples over the chosen clients only."""
    return _figures(clients, "test", OnSplit(*(each.only(chosen) for each in scores)))


def _figures(clients: Clients, split: str, scores: OnSplit) -> Figures:
    as_is, adapted, before, after = (statistics(each, _sizes(clients, split, each)) for each in scores)
    return Figures(Existing(as_is, adapted), New(before, after))


def _sizes(clients: Clients, split: str, scores: Scores) -> Floats:
    return clients.sizes(split)[scores.clients].astype(np.float64)


def statistics(scores: Scores, sizes: Floats) -> Statistics:
    """Compute statistics over clients, leaving out clients without examples."""
    tested = ~np.isnan(scores.accuracy)
    accuracy, sizes = scores.accuracy[tested], sizes[tested]
    if not len(accuracy):
        return Statistics()
    number = len(accuracy)
    return Statistics(
        mean=float(accuracy.mean()),
        weighted_mean=float((accuracy * sizes).sum() / sizes.sum()),
        std=float(accuracy.std()),
        stderr=float(accuracy.std(ddof=1) / np.sqrt(number)) if number > 1 else None,
        bottom_decile=float(np.sort(accuracy)[number // 10]),
        restricted_mean=float(scores.restricted[tested].mean()),
        loss=_finite_mean(scores.loss[tested]),
        train_loss=_finite_mean(scores.train_loss),
        clients=number,
    )


def _finite_mean(values: Floats) -> float | None:
    mean = float(values.mean())
    return mean if math.isfinite(mean) else None


def _parts(clients: Sequence[int]) -> Iterator[Sequence[int]]:
    for start in range(0, len(clients), AT_ONCE):
        yield clients[start : start + AT_ONCE]
