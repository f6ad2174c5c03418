"""The only difference between engines: how a function is applied to each client of a cohort."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from traceback import walk_tb
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from coterie.aggregate.rule import Rule, Total
from coterie.clients import work
from coterie.clients.clients import Counts
from coterie.clients.messages import Names, majority, misfit, misfit_letter, not_finite, same_values
from coterie.clients.workload import Workload
from coterie.core.data import Data, Graph
from coterie.core.method import Round, Tree
from coterie.core.tree import as_lists, finite_rows, num_bytes, unstack
from coterie.core.untouched import untouched
from coterie.errors import ClientError, UserError

ClientFunction = Callable[..., tuple[Tree, ...]]


class Call(NamedTuple):
    """A function of `clients.work`, to be applied to each of some clients."""

    function: ClientFunction
    shared: Tree
    clients: Sequence[int]
    states: tuple[Sequence[Tree], ...]
    """Trees of each client, which the function takes after the shared model."""
    splits: tuple[str, ...] = ()
    """Splits of the client's data, which the function takes last."""
    round: int = 0
    """Round of the clients' random streams."""

    @property
    def stage(self) -> str:
        """Name of the method's function that is called."""
        function = getattr(self.function, "func", self.function)
        if function in (work.evaluate, work.score, work.score_updated):
            return "predict"
        return "local_update" if function is work.told_update else str(function.__name__)

    def part(self, places: Sequence[int]) -> "Call":
        """Return the call for some of the clients, by their places among the clients."""
        return self._replace(
            clients=take(self.clients, places), states=tuple(take(kind, places) for kind in self.states)
        )


class Cohort(NamedTuple):
    """The clients of a round, with everything they need for their local updates."""

    shared: Tree
    clients: Sequence[int]
    personal: Sequence[Tree]
    weights: Tensor
    rnd: Round
    """The round, with the probabilities of these clients if they differ."""
    scored: bool = False
    """Whether clients are evaluated right after their local updates."""

    def part(self, places: Sequence[int]) -> "Cohort":
        """Return some of the clients, by their places among the clients."""
        places, rnd = list(places), self.rnd
        return self._replace(
            clients=take(self.clients, places),
            personal=take(self.personal, places),
            weights=self.weights[places],
            rnd=rnd if rnd.chance is None else replace(rnd, chance=rnd.chance[places]),
        )

    def told(self, like: Tensor) -> list[Tree]:
        """Return what only one client is told about the round, for each client: its probability to take part, if these
        differ, as a number of the type of `like`."""
        chances = self.rnd.chance
        return [{}] * len(self.clients) if chances is None else [{"chance": each} for each in chances.to(like)]


class Group(NamedTuple):
    """Results for some of the clients of a call, stacked along a leading axis."""

    places: Sequence[int]
    """Places of the clients among those of the call."""
    results: tuple[Tree, ...]

    def rows(self, part: int = 0) -> list[Tree]:
        """Return one of the results, for each client of the group."""
        return unstack(self.results[part], len(self.places))

    def numbers(self) -> list[list[dict[str, float]]]:
        """Return each of the results as plain numbers for each client. They leave the device together."""
        columns = iter(as_lists([value for tree in self.results for value in tree.values()]))
        named = [{name: next(columns) for name in tree} for tree in self.results]
        return [[dict(zip(tree, row, strict=True)) for row in zip(*tree.values(), strict=True)] for tree in named]

    def only(self, chosen: Tensor) -> "Group":
        """Return the group without the clients that are not chosen."""
        if chosen.all():
            return self
        rows = chosen.nonzero()[:, 0]
        results = tuple({name: value[rows.to(value.device)] for name, value in tree.items()} for tree in self.results)
        return Group([self.places[row] for row in rows.tolist()], results)


@dataclass
class Alike:
    """Replies of some clients that all have the same names."""

    total: Total
    personal: dict[int, Tree] = field(default_factory=dict)
    """New personal states of these clients."""
    letters: dict[int, Tree] = field(default_factory=dict)
    """Letters of these clients to the server."""


@dataclass
class Results:
    """Results of the local updates of a cohort, or of a part of it."""

    replies: dict[Names, Alike] = field(default_factory=dict)
    """Replies by the names of their tensors and numbers. Clients that agree are in one entry."""
    refused: dict[int, str] = field(default_factory=dict)
    """Clients whose replies do not fit or are not finite, with the reason."""
    bytes_up: int = 0
    scores: Counts = field(default_factory=dict)
    scoring_seconds: float = 0.0

    def merge(self, other: Self) -> None:
        """Add the results of another part of the cohort."""
        for names, theirs in other.replies.items():
            if (mine := self.replies.setdefault(names, theirs)) is not theirs:
                mine.total.merge(theirs.total)
                mine.personal |= theirs.personal
                mine.letters |= theirs.letters
        self.refused |= other.refused
        self.bytes_up += other.bytes_up
        self.scores |= other.scores
        self.scoring_seconds += other.scoring_seconds

    def receive(self, group: Group, cohort: Cohort, rule: Rule, letter: Tree) -> Group:
        """Check the replies of a group, and add those that fit to the results. Returns the group without the others.

        Args:
            group: tensors, numbers, new personal states and letters. Real sites keep their personal states, so that
                these are empty.
            cohort: the clients that were asked, and what they were asked.
            rule: how replies become one update.
            letter: a letter as clients send it.
        """
        tensors, numbers, mine, letters = group.results
        self.bytes_up += num_bytes(tensors) + num_bytes(numbers) + num_bytes(letters)
        if why := misfit(tensors, numbers, cohort.shared) or misfit_letter(letters, letter):
            self.refused |= dict.fromkeys(take(cohort.clients, group.places), why)
            return group.only(torch.zeros(len(group.places), dtype=torch.bool))
        # A letter that came over a network has its names in any order, and sums over names depend on the order.
        letters = {name: letters[name] for name in letter}
        group = group._replace(results=(tensors, numbers, mine, letters))
        total = rule.start()
        total.add(cohort.weights[list(group.places)], tensors, numbers)
        if not total.is_finite() or not finite_rows(len(group.places), mine, letters).all():
            group = self._only_finite(group, cohort)
            if not group.places:
                return group
            tensors, numbers, *_ = group.results
            total = rule.start()
            total.add(cohort.weights[list(group.places)], tensors, numbers)
        names = frozenset(tensors), frozenset(numbers)
        if (alike := self.replies.setdefault(names, Alike(total))).total is not total:
            alike.total.merge(total)
        answered = take(cohort.clients, group.places)
        alike.personal |= dict(zip(answered, group.rows(2), strict=True))
        alike.letters |= dict(zip(answered, group.rows(3), strict=True))
        return group

    def _only_finite(self, group: Group, cohort: Cohort) -> Group:
        """Refuse replies that are not finite. Returns the group without them."""
        parts = dict(zip(("tensor", "number", "state", "letter's tensor"), group.results, strict=True))
        finite = finite_rows(len(group.places), *group.results)
        for row in (~finite).nonzero()[:, 0].tolist():
            self.refused[cohort.clients[group.places[row]]] = not_finite(parts, row)
        return group.only(finite)

    def agreed(self) -> Alike | None:
        """Return the replies with the names that most clients sent, or None if there are none. Refuse all others."""
        names, others = majority({names: alike.personal for names, alike in self.replies.items()})
        self.refused = dict(sorted((self.refused | others).items()))
        self.scores = {client: counts for client, counts in self.scores.items() if client not in others}
        return None if names is None else self.replies[names]


class Engine(ABC):
    """A way to compute the work of many clients."""

    def unfit(self, load: Workload) -> str | None:  # noqa: ARG002
        """Return why this engine cannot do the work, or None if it can."""
        return None

    def open(self, load: Workload) -> None:  # noqa: B027
        """Get ready, and find out now whether something is missing."""

    def close(self) -> None:  # noqa: B027
        """Stop everything that was started."""

    @abstractmethod
    def each_client(self, load: Workload, call: Call) -> Iterator[Group]:
        """Apply function(work, shared, states of the client, its data) to each client, in groups."""

    def local_updates(self, load: Workload, cohort: Cohort) -> Results:
        """Do the local updates of a cohort, and aggregate the replies.

        What changes the shared model is noticed in `clients.work`, but for changes through the attribute `data` of a
        tensor. In the first round of a run the values are therefore compared, too.
        """
        function = f"{type(load.work.method).__name__}.local_update"
        values = same_values(function, cohort.shared if cohort.rnd.index == 1 else {})
        with untouched(function, {"examples": {"x": load.federation.x}}), values:
            return self._aggregated(load, cohort)

    def _aggregated(self, load: Workload, cohort: Cohort) -> Results:
        results = Results()
        update = partial(work.told_update, rnd=cohort.rnd.common)
        states = (cohort.personal, cohort.told(load.work.like))
        call = Call(update, cohort.shared, cohort.clients, states, ("train",), cohort.rnd.index)
        for group in self.each_client(load, call):
            accepted = results.receive(group, cohort, load.aggregate, load.work.letter)
            if cohort.scored and accepted.places:
                start, states = time.perf_counter(), (accepted.rows(0), accepted.rows(2))
                answered = take(cohort.clients, accepted.places)
                scored = Call(work.score_updated, cohort.shared, answered, states, ("test",))
                results.scores |= self.counts(load, scored)
                results.scoring_seconds += time.perf_counter() - start
        return results

    def answers(self, load: Workload, call: Call) -> dict[int, Tree]:
        """Return the results of a function with one result, by client."""
        found: dict[int, Tree] = {}
        for group in self.each_client(load, call):
            found |= dict(zip(take(call.clients, group.places), group.rows(), strict=True))
        return found

    def counts(self, load: Workload, call: Call) -> Counts:
        """Return the counts of a function that scores, by client."""
        found: Counts = {}
        for group in self.each_client(load, call):
            (rows,) = group.numbers()
            found |= zip(take(call.clients, group.places), rows, strict=True)
        return found


def take(values: Sequence[Any], places: Sequence[int]) -> list[Any]:
    """Return the values at these places."""
    return [values[place] for place in places]


def same_examples(load: Workload, call: Call, data: Sequence[Data]) -> AbstractContextManager[None]:
    """Return the guard around a function of clients: it must not change their examples, because they may be a view."""
    inputs = [each.x.nodes if isinstance(each.x, Graph) else each.x for each in data]
    stage = "adapt or predict" if call.stage == "predict" else call.stage  # an evaluation calls both
    name = f"{type(load.work.method).__name__}.{stage}"
    return untouched(name, {"examples": dict(zip(call.splits, inputs, strict=True))})


@contextmanager
def reporting(
    load: Workload, stage: str, clients: Sequence[int], index: int = 0, *, batched: bool = False
) -> Iterator[None]:
    """Name the method, the stage and the clients in an exception that a method raises.

    `batched` says that clients are computed together by vmap, where functions cannot look at the values of tensors.
    """
    try:
        yield
    except (ClientError, UserError, MemoryError):
        raise
    except Exception as error:
        if any(frame.f_code is work.adapt.__code__ for frame, _ in walk_tb(error.__traceback__)):
            stage = "adapt"  # within an evaluation
        names = [repr(load.federation.ids[client]) for client in clients]
        who, hint = f"client {names[0]}", ""
        if len(names) > 1:
            who = f"clients {', '.join(names[:3])}{', ...' if len(names) > 3 else ''}, computed together"
        if batched:
            hint = (
                "; this engine runs the method under torch.func.vmap, where it cannot look at values of tensors, as in "
                "float(loss), print(loss) or `if loss > 1`, and cannot change tensors in place; "
                'engine.kind = "loop" computes one client at a time'
            )
        when = f" in round {index}" if index else ""
        raise ClientError(
            f"{type(load.work.method).__name__}.{stage} failed for {who}{when}: {type(error).__name__}: {error}{hint}"
        ) from error
