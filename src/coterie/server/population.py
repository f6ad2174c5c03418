"""Who is there: clients that come and go between rounds, and clients that do not answer.

Whoever is absent is not drawn, and does not count in I and N; whoever comes back has the personal state it left with.
"""

from collections.abc import Sequence
from dataclasses import field
from typing import NotRequired

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypedDict

from coterie import streams
from coterie.core.data import Index
from coterie.data.federation import Federation
from coterie.errors import UserError
from coterie.settings import Count, Share, settings

Present = NDArray[np.bool_]


class Change(TypedDict):
    """Just before that round."""

    round: Count
    join: NotRequired[list[str]]
    leave: NotRequired[list[str]]


@settings
class PopulationSettings:
    schedule: list[Change] = field(default_factory=list)
    """Who comes and who goes before which round: { round = 50, join = ["7"], leave = ["0", "1"] }. Whoever comes before
    it has gone is absent at first."""
    absent: Share = 0.0
    """Share of the clients that are not there at first, at random; not with a schedule."""
    join: Share = 0.0
    """Probability that an absent client comes before a round."""
    leave: Share = 0.0
    """Probability that a present client goes before a round."""
    dropout: Share = 0.0
    """Probability that a client of a cohort does not answer, each on its own."""


class Population:
    """`present(t)` is a function of the settings, the seed and t alone, so that a resumed run sees the same."""

    def __init__(self, settings: PopulationSettings, federation: Federation, seed: int) -> None:
        self._settings, self._federation, self._seed = settings, federation, seed
        self._changes = {change["round"]: change for change in _checked(settings, federation)}
        self._round, self._present = 0, self._at_first()

    def present(self, index: int) -> Index:
        """The clients that may take part in round 1, 2, ..."""
        if index < self._round:
            self._round, self._present = 0, self._at_first()
        while self._round < index:
            self._round += 1
            self._present = self._moved(self._present, self._round)
        return np.flatnonzero(self._present)

    def answering(self, cohort: Index, r: float, index: int) -> tuple[Index, float]:
        """Of a cohort that is drawn with an expected size of r: who answers, and the expected number of such."""
        if not self._settings.dropout:
            return cohort, r
        lots = streams.generator(self._seed, "answering", index).random(len(cohort))
        return cohort[lots >= self._settings.dropout], r * (1 - self._settings.dropout)

    def _at_first(self) -> Present:
        there = ~self._federation.is_new
        seen: set[str] = set()
        for _, change in sorted(self._changes.items()):
            comes = set(change.get("join", [])) - seen
            there &= ~np.isin(self._federation.ids, list(comes))
            seen |= comes | set(change.get("leave", []))
        if self._settings.absent:
            existing = self._federation.existing
            number = int(self._settings.absent * len(existing) + 1e-9)
            there[streams.generator(self._seed, "absent").choice(existing, number, replace=False)] = False
        return there

    def _moved(self, present: Present, index: int) -> Present:
        if change := self._changes.get(index):
            ids = self._federation.ids
            return (present | np.isin(ids, change.get("join", []))) & ~np.isin(ids, change.get("leave", []))
        if not (self._settings.join or self._settings.leave):
            return present
        lots = streams.generator(self._seed, "population", index).random(len(present))
        stays, comes = lots >= self._settings.leave, lots < self._settings.join
        moved: Present = np.where(present, stays, comes) & ~self._federation.is_new
        return moved


def _checked(settings: PopulationSettings, federation: Federation) -> Sequence[Change]:
    if settings.schedule and (settings.join or settings.leave or settings.absent):
        raise UserError("population.schedule says who comes and goes; leave out population.join, leave and absent")
    rounds = [change["round"] for change in settings.schedule]
    if twice := {each for each in rounds if rounds.count(each) > 1}:
        raise UserError(f"population.schedule has round {min(twice)} more than once; put its changes together")
    may = {federation.ids[i] for i in federation.existing}
    for change in settings.schedule:
        for who in [*change.get("join", []), *change.get("leave", [])]:
            if who not in may:
                raise UserError(
                    f"population.schedule names {who!r}, who is not among the {len(may):,} clients of the training"
                )
    return settings.schedule
