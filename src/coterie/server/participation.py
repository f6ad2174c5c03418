"""How the cohort of a round is drawn, and its expected size r, so that a client takes part with probability r/I."""

from abc import ABC, abstractmethod
from typing import Annotated

import numpy as np
from pydantic import Field

from coterie.core.data import Index
from coterie.errors import UserError
from coterie.settings import Count, settings


class Participation(ABC):
    """A random process that draws cohorts."""

    @abstractmethod
    def check(self, num_clients: int) -> None:
        """Raise UserError if a cohort cannot be drawn from this number of clients."""

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

    pi: Annotated[float, Field(gt=0, le=1)]

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
