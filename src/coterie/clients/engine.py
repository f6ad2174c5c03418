"""The only seam between engines: how a function is applied to each client of a cohort, and who is asked to do it."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Self

from torch import Tensor

from coterie.aggregate.rule import Total
from coterie.clients import client
from coterie.clients.setup import Setup
from coterie.core.method import Round, Tree
from coterie.core.tree import finite_rows, num_bytes, unstack

ClientFunction = Callable[..., tuple[Tree, ...]]


class Group(NamedTuple):
    """Some of the clients, and what the function gave for them, stacked along a leading axis."""

    places: Sequence[int]
    results: tuple[Tree, ...]

    def rows(self, part: int = 0) -> list[Tree]:
        """One of the results, for each client of the group."""
        return unstack(self.results[part], len(self.places))


@dataclass
class Replies:
    """What comes back from a cohort, or from a part of it."""

    total: Total
    personal: dict[int, Tree] = field(default_factory=dict)
    refused: list[int] = field(default_factory=list)
    """Who sent something that is not finite; as if they had not answered."""
    bytes_up: int = 0
    scores: dict[int, Tree] = field(default_factory=dict)
    """As `client.score` gives them, where they were asked for."""
    scoring_seconds: float = 0.0

    def merge(self, other: Self) -> None:
        self.total.merge(other.total)
        self.personal |= other.personal
        self.refused += other.refused
        self.bytes_up += other.bytes_up
        self.scores |= other.scores
        self.scoring_seconds += other.scoring_seconds


class Engine(ABC):
    def unfit(self, setup: Setup) -> str | None:  # noqa: ARG002
        """Why this engine cannot do the work, if it cannot."""
        return None

    def open(self, setup: Setup) -> None:  # noqa: B027
        """Get ready. What must be there and is not is found now, before any work."""

    def close(self) -> None:  # noqa: B027
        """End whatever was started."""

    @abstractmethod
    def each_client(
        self,
        setup: Setup,
        function: ClientFunction,
        shared: Tree,
        clients: Sequence[int],
        *states: Sequence[Tree],
        split: str | None = None,
        index: int = 0,
    ) -> Iterator[Group]:
        """function(setup, shared, a state of each kind, data) for each client, in groups of the engine's choice.

        `data` are the client's of that split, with its stream in round `index`; without a split there is none.
        """

    def local_updates(
        self,
        setup: Setup,
        shared: Tree,
        clients: Sequence[int],
        personal: Sequence[Tree],
        weights: Tensor,
        rnd: Round,
        scored: bool,
    ) -> Replies:
        """The cohort's work in a round."""
        replies = Replies(setup.aggregate.start())
        work = partial(client.update, rnd=rnd)
        for group in self.each_client(setup, work, shared, clients, personal, split="train", index=rnd.index):
            messages, mine = group.results
            sent = finite_rows(messages, len(group.places)) & finite_rows(mine, len(group.places))
            replies.bytes_up += num_bytes(messages)
            replies.refused += [clients[place] for place, ok in zip(group.places, sent.tolist(), strict=True) if not ok]
            if not sent.any():
                continue
            group = _only(group, sent)
            messages, mine = group.results
            replies.total.add(weights[list(group.places)], messages)
            answered = [clients[place] for place in group.places]
            replies.personal |= dict(zip(answered, group.rows(1), strict=True))
            if scored:
                start, after = time.perf_counter(), (group.rows(0), group.rows(1))
                replies.scores |= self.answers(setup, client.score_updated, shared, answered, *after, split="test")
                replies.scoring_seconds += time.perf_counter() - start
        return replies

    def answers(
        self,
        setup: Setup,
        function: ClientFunction,
        shared: Tree,
        clients: Sequence[int],
        *states: Sequence[Tree],
        split: str | None = None,
    ) -> dict[int, Tree]:
        """`each_client` for functions with one result, by client."""
        found: dict[int, Tree] = {}
        for group in self.each_client(setup, function, shared, clients, *states, split=split):
            found |= dict(zip([clients[place] for place in group.places], group.rows(), strict=True))
        return found

    def adapted_scores(
        self,
        setup: Setup,
        shared: Tree,
        clients: Sequence[int],
        personal: Sequence[Tree],
        steps: int,
        splits: Sequence[str],
    ) -> dict[str, dict[int, Tree]]:
        """`client.score` after adaptation, for each split; group by group, so that no two are in memory adapted."""
        scores: dict[str, dict[int, Tree]] = {split: {} for split in splits}
        work = partial(client.adapt, steps=steps)
        for group in self.each_client(setup, work, shared, clients, personal, split="train"):
            who = [clients[place] for place in group.places]
            for split in splits:
                scores[split] |= self.answers(setup, client.score, shared, who, group.rows(), split=split)
        return scores


def _only(group: Group, chosen: Tensor) -> Group:
    if chosen.all():
        return group
    rows = chosen.nonzero()[:, 0]
    results = tuple({name: value[rows.to(value.device)] for name, value in tree.items()} for tree in group.results)
    return Group([group.places[row] for row in rows.tolist()], results)
