"""The population: clients that join and leave between rounds, and clients that do not answer.

An absent client is not drawn, and does not count in I and N. A client that returns continues with the state it had when
it left.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import field
from functools import cached_property
from typing import Annotated, NotRequired

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from typing_extensions import TypedDict

from coterie import streams
from coterie.core.data import Index
from coterie.errors import UserError
from coterie.settings import Count, Share, settings

Present = NDArray[np.bool_]


class Change(TypedDict):
    """Clients that join and leave just before a round."""

    round: Count
    join: NotRequired[list[str]]
    leave: NotRequired[list[str]]


@settings
class PopulationSettings:
    """The section [population] of a recipe."""

    schedule: list[Change] = field(default_factory=list)
    """Clients that join and leave, by round: { round = 50, join = ["7"], leave = ["0"] }. A client whose first entry is
    `join` starts absent."""
    absent: Share = 0.0
    """Share of the clients that start absent, drawn at random. Not allowed with a schedule."""
    join: Share = 0.0
    """Probability that an absent client joins before a round."""
    leave: Share = 0.0
    """Probability that a present client leaves before a round."""
    dropout: Share = 0.0
    """Probability that a client of a cohort does not answer, independently of the others."""
    burst: Share = 0.0
    """Probability that a burst begins in a round: many clients fail to answer in the same rounds."""
    burst_rounds: Count = 1
    """Number of rounds that a burst lasts."""
    burst_dropout: Share = 0.9
    """Probability that a client of a cohort does not answer during a burst, instead of `dropout`."""
    slow: Share = 0.0
    """Share of the training clients that are slow, drawn at random once for the whole run."""
    late: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Probability that a slow client misses the deadline of a round, so that its answer does not count."""
    correct: bool = True
    """Whether r, which weights the sum, is the expected number of answers. If not, it is the number of clients that are
    asked, as for a server that does not know how often clients fail to answer."""


class Presence(ABC):
    """Which clients are there in each round."""

    @abstractmethod
    def present(self, index: int) -> Index:
        """Return the clients that may take part in round 1, 2, ..."""

    def answering(self, cohort: Index, r: float, index: int) -> tuple[Index, float]:  # noqa: ARG002
        """Return which clients of a cohort answer, and their expected number if the cohort has expected size r."""
        return cohort, r


class Population(Presence):
    """The clients that are present in each round: a function of settings, seed and round, the same after a resume."""

    def __init__(self, settings: PopulationSettings, ids: Sequence[str], is_new: Present, seed: int) -> None:
        self._settings, self._ids, self._is_new, self._seed = settings, ids, is_new, seed
        self._changes = {change["round"]: change for change in _checked(settings, ids, is_new)}
        self._round, self._present = 0, self._at_first()

    def present(self, index: int) -> Index:
        if index < self._round:
            self._round, self._present = 0, self._at_first()
        while self._round < index:
            self._round += 1
            self._present = self._moved(self._present, self._round)
        return np.flatnonzero(self._present)

    @cached_property
    def slow(self) -> Present:
        """Which clients are slow."""
        return self._drawn("slow", self._settings.slow)

    def answering(self, cohort: Index, r: float, index: int) -> tuple[Index, float]:
        # The expected number does not use whether there is a burst, which nobody knows before the round.
        if not (self._settings.dropout or self._settings.burst or self._settings.slow):
            return cohort, r
        drops = self._settings.burst_dropout if self._is_burst(index) else self._settings.dropout
        fails = drops + (1 - drops) * self._late[cohort]
        lots = streams.generator(self._seed, "answering", index).random(len(cohort))
        return cohort[lots >= fails], r * self._expected_share(index) if self._settings.correct else r

    def _expected_share(self, index: int) -> float:
        """Return the probability that a client of the cohort answers, if it is a random one of those present."""
        begun = 1 - (1 - self._settings.burst) ** min(index, self._settings.burst_rounds)
        drops = (1 - begun) * self._settings.dropout + begun * self._settings.burst_dropout
        present = self.present(index)
        return (1 - drops) * (1 - float(self._late[present].mean()) if len(present) else 1.0)

    def _is_burst(self, index: int) -> bool:
        """Return whether a burst began in this round or in one that is recent enough."""
        recent = range(max(1, index - self._settings.burst_rounds + 1), index + 1)
        return bool(self._settings.burst) and any(
            streams.generator(self._seed, "burst", t).random() < self._settings.burst for t in recent
        )

    @cached_property
    def _late(self) -> NDArray[np.float64]:
        """Probability of each client to miss a deadline."""
        return np.where(self.slow, self._settings.late, 0.0)

    def _drawn(self, purpose: str, share: float) -> Present:
        """Draw a share of the training clients."""
        drawn = np.zeros(len(self._ids), dtype=bool)
        if share:
            existing = np.flatnonzero(~self._is_new)
            number = int(share * len(existing) + 1e-9)
            drawn[streams.generator(self._seed, purpose).choice(existing, number, replace=False)] = True
        return drawn

    def _at_first(self) -> Present:
        there = ~self._is_new
        seen: set[str] = set()
        for _, change in sorted(self._changes.items()):
            comes = set(change.get("join", [])) - seen
            there &= ~np.isin(self._ids, list(comes))
            seen |= comes | set(change.get("leave", []))
        there &= ~self._drawn("absent", self._settings.absent)
        return there

    def _moved(self, present: Present, index: int) -> Present:
        if change := self._changes.get(index):
            ids = self._ids
            return (present | np.isin(ids, change.get("join", []))) & ~np.isin(ids, change.get("leave", []))
        if not (self._settings.join or self._settings.leave):
            return present
        lots = streams.generator(self._seed, "population", index).random(len(present))
        stays, comes = lots >= self._settings.leave, lots < self._settings.join
        moved: Present = np.where(present, stays, comes) & ~self._is_new
        return moved


def _checked(settings: PopulationSettings, ids: Sequence[str], is_new: Present) -> Sequence[Change]:
    if settings.schedule and (settings.join or settings.leave or settings.absent):
        raise UserError(
            "population.schedule already says which clients join and leave; omit population.join, leave and absent"
        )
    rounds = [change["round"] for change in settings.schedule]
    if twice := {each for each in rounds if rounds.count(each) > 1}:
        raise UserError(f"population.schedule has round {min(twice)} more than once; merge its changes into one entry")
    may = {ids[i] for i in np.flatnonzero(~is_new).tolist()}
    for change in settings.schedule:
        for who in [*change.get("join", []), *change.get("leave", [])]:
            if who not in may:
                raise UserError(
                    f"population.schedule names client {who!r}, which is not one of the {len(may):,} training clients"
                )
    return settings.schedule
