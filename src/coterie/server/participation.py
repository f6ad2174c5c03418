"""How the cohort of a round is drawn, and its expected size r, so that a client takes part with probability r/I.

With `Unequal`, every client has a probability of its own.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from coterie.core.data import Index
from coterie.errors import UserError
from coterie.settings import Count, settings

Floats = NDArray[np.float64]
Probability = Annotated[float, Field(gt=0, le=1)]


class Crowd(Protocol):
    """Clients from whom cohorts are drawn."""

    @property
    def ids(self) -> Sequence[str]:
        """Names of the clients."""

    @property
    def is_new(self) -> NDArray[np.bool_]:
        """Which clients are held out of training, as new users."""

    def sizes(self, split: str = "train") -> Index:
        """Return the number of examples of each client."""


class Participation(ABC):
    """A random process that draws cohorts."""

    @abstractmethod
    def check(self, num_clients: int) -> None:
        """Raise UserError if a cohort cannot be drawn from this number of clients."""

    def among(self, present: Index) -> "Participation":  # noqa: ARG002
        """Return the process for the clients that are present."""
        return self

    def chances(self, clients: Index) -> Floats | None:  # noqa: ARG002
        """Return the probability that each of these clients takes part, or None if it is r/I for all of them."""
        return None

    @abstractmethod
    def draw(self, num_clients: int, rng: np.random.Generator) -> tuple[Index, float]:
        """Draw a cohort. Returns (places among the clients in increasing order, expected size r of the cohort).

        If fewer clients are present than the process asks for, all of them are drawn.
        """


@settings
class Fixed(Participation):
    """A fixed number r of clients, without replacement: case (b) of the PFLEGO paper, section 3.2.1."""

    r: Count

    def check(self, num_clients: int) -> None:
        if self.r > num_clients:
            raise UserError(
                f"run.clients_per_round = {self.r}, but only {num_clients} clients can be drawn; lower it, or omit "
                "it (--set run.clients_per_round=) to take all clients"
            )

    def draw(self, num_clients: int, rng: np.random.Generator) -> tuple[Index, float]:
        r = min(self.r, num_clients)
        return np.sort(rng.choice(num_clients, r, replace=False)), r


@settings
class Independent(Participation):
    """Each client independently with probability pi: case (a) of the PFLEGO paper. The cohort may be empty."""

    pi: Probability

    def check(self, num_clients: int) -> None:
        pass

    def draw(self, num_clients: int, rng: np.random.Generator) -> tuple[Index, float]:
        size = rng.binomial(num_clients, self.pi)
        return np.sort(rng.choice(num_clients, size, replace=False)), num_clients * self.pi


@settings
class Uniform(Participation):
    """A number of clients that is drawn uniformly from low, ..., high: Figure 7 of the PFLEGO paper."""

    low: Count
    high: Count

    def check(self, num_clients: int) -> None:
        if not self.low <= self.high <= num_clients:
            raise UserError(
                f"run.clients_range = [{self.low}, {self.high}] must be increasing and at most {num_clients}, "
                "the number of clients to draw from"
            )

    def draw(self, num_clients: int, rng: np.random.Generator) -> tuple[Index, float]:
        r = min(int(rng.integers(self.low, self.high, endpoint=True)), num_clients)
        return np.sort(rng.choice(num_clients, r, replace=False)), r


@dataclass(frozen=True, eq=False)
class Unequal(Participation):
    """Each client independently with a probability of its own. The cohort may be empty."""

    pi: Floats
    """Probability of each client."""

    def check(self, num_clients: int) -> None:
        pass

    def among(self, present: Index) -> "Unequal":
        return Unequal(self.pi[present])

    def chances(self, clients: Index) -> Floats:
        return self.pi[clients]

    def draw(self, num_clients: int, rng: np.random.Generator) -> tuple[Index, float]:
        return np.flatnonzero(rng.random(num_clients) < self.pi), float(self.pi.sum())


def by_size(sizes: Index, r: int) -> Floats:
    """Return probabilities proportional to sizes, at most 1, for cohorts of r clients on average.

    If the largest clients would exceed 1, they always take part, and the others share the rest.
    """
    Fixed(r).check(len(sizes))
    certain, before, pi = np.zeros(len(sizes), np.bool_), -1, np.zeros(len(sizes))
    while before < certain.sum() and sizes[~certain].any():
        before = int(certain.sum())
        pi = np.where(certain, 1.0, (r - before) * sizes / sizes[~certain].sum())
        certain |= pi >= 1
    return np.where(certain, 1.0, pi)


def by_name(ids: Sequence[str], named: Mapping[str, float], others: float | None) -> Floats:
    """Return the probabilities that are given by name, and the same one for all other clients."""
    if unknown := [name for name in named if name not in set(ids)]:
        raise UserError(f"run.chances names {unknown[0]!r}, which is not one of the {len(ids):,} training clients")
    if others is None and (missing := [name for name in ids if name not in named]):
        raise UserError(
            f"run.chances has no probability for {missing[0]!r} and {len(missing) - 1:,} other clients; add them, or "
            "set run.probability for all clients that are not named"
        )
    return np.array([named.get(name, others) for name in ids], np.float64)
