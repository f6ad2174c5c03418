"""Evaluation: existing users as they are and adapted, new users before and after adaptation. It changes nothing."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
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
    def of(cls, counts: Counts, train_loss: Mapping[int, float] | None = None) -> "Scores":
        """Compute scores from the counts, and training losses, of each client."""
        clients = sorted(counts)
        names = ("examples", "right", "restricted", "loss")
        columns = np.array([[counts[i][name] for name in names] for i in clients], dtype=np.float64).reshape(-1, 4)
        examples = np.where(columns[:, 0] > 0, columns[:, 0], np.nan)
        losses = np.array([(train_loss or {}).get(i, math.nan) for i in clients], dtype=np.float64)
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
    stored_bytes: float
    """Mean over existing clients of the size of what each keeps for itself. NaN without such clients."""


def evaluate(
    clients: Clients, shared: Tree, adapt_steps: int, existing: Sequence[int], new: Sequence[int]
) -> Evaluation:
    """Evaluate existing and new clients on all splits."""
    sizes, weighted, stored = clients.sizes(), 0.0, 0
    found: dict[str, list[Counts]] = {split: [{}, {}, {}, {}] for split in clients.splits}
    losses: list[dict[int, float]] = [{}, {}, {}, {}]
    for group, who in enumerate((existing, new)):
        for some in _parts(who):
            scored = clients.score(shared, some, adapt_steps)
            for split, counts in found.items():
                counts[2 * group] |= scored.as_is[split]
                counts[2 * group + 1] |= scored.adapted[split]
            losses[2 * group] |= scored.train_loss
            losses[2 * group + 1] |= scored.adapted_loss
            if who is existing:
                weighted += sum(float(sizes[i]) * loss for i, loss in scored.train_loss.items())
                stored += sum(scored.stored_bytes.values())
    test, *validation = (OnSplit(*map(Scores.of, counts, losses)) for counts in found.values())
    loss = weighted / float(sizes[list(existing)].sum()) if len(existing) else math.nan
    return Evaluation(test, next(iter(validation), None), loss, stored / len(existing) if len(existing) else math.nan)


def measured(clients: Clients, evaluation: Evaluation, participants: Scores) -> Evaluated:
    """Turn an evaluation into statistics over clients."""
    test, validation = _figures(clients, "test", evaluation.test), None
    if evaluation.validation is not None:
        validation = _figures(clients, "validation", evaluation.validation)
    existing = replace(test.existing, participants=statistics(participants, _sizes(clients, "test", participants)))
    loss = evaluation.train_loss if math.isfinite(evaluation.train_loss) else None
    return Evaluated(existing, test.new, loss, validation)


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
