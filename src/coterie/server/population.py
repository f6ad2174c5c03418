"""The population: clients that join and leave between rounds, and clients that do not answer.

An absent client is not drawn, and does not count in I and N. A client that returns continues with the state it had when
it left.
"""

from collections.abc import Sequence
from dataclasses import field
from typing import NotRequired

import numpy as np
from numpy.typing import NDArray
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


class Population:
    """The clients that are present in each round: a function of settings, seed and round, the same after a resume."""

    def __init__(self, settings: PopulationSettings, ids: Sequence[str], is_new: Present, seed: int) -> None:
        self._settings, self._ids, self._is_new, self._seed = settings, ids, is_new, seed
        self._changes = {change["round"]: change for change in _checked(settings, ids, is_new)}
        self._round, self._present = 0, self._at_first()

    def present(self, index: int) -> Index:
        """Return the clients that may take part in round 1, 2, ..."""
        if index < self._round:
            self._round, self._present = 0, self._at_first()
        while self._round < index:
            self._round += 1
            self._present = self._moved(self._present, self._round)
        return np.flatnonzero(self._present)

    def answering(self, cohort: Index, r: float, index: int) -> tuple[Index, float]:
        """Return which clients of a cohort answer, and their expected number if the cohort has expected size r."""
        if not self._settings.dropout:
            return cohort, r
        lots = streams.generator(self._seed, "answering", index).random(len(cohort))
        return cohort[lots >= self._settings.dropout], r * (1 - self._settings.dropout)

    def _at_first(self) -> Present:
        there = ~self._is_new
        seen: set[str] = set()
        for _, change in sorted(self._changes.items()):
            comes = set(change.get("join", [])) - seen
            there &= ~np.isin(self._ids, list(comes))
            seen |= comes | set(change.get("leave", []))
        if self._settings.absent:
            existing = np.flatnonzero(~self._is_new)
            number = int(self._settings.absent * len(existing) + 1e-9)
            there[streams.generator(self._seed, "absent").choice(existing, number, replace=False)] = False
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
