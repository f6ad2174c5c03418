"""What crosses the network in one round: an announcement goes down, replies come up."""

from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import Tensor

from coterie.core.tree import Tree
from coterie.settings import length


@dataclass(frozen=True)
class Round:
    """One round, as the server announces it to the cohort."""

    index: int
    """Number of the round: 1, 2, ..."""
    num_clients: int
    """I: number of clients that may take part."""
    num_examples: int
    """N: number of training examples of these clients together."""
    cohort_size: float
    """r: *expected* size of the cohort, so that a client takes part with probability r/I."""
    seed: int
    """Seed of the run."""
    steps: int = 0
    """Number of local steps, or Epochs; 0 until the method has set it in `plan`."""
    chance: Tensor | None = None
    """Pr(i): probability that the client takes part. None means r/I for all clients. If it differs, the server has a
    vector with that of each client of the cohort, and a client is told its own."""

    @property
    def importance(self) -> float | Tensor:
        """1/Pr(i): the factor that makes a sum over cohorts right on average."""
        return self.num_clients / self.cohort_size if self.chance is None else 1 / self.chance

    def told(self, told: Tree) -> "Round":
        """Return the round with what only one client is told."""
        return replace(self, chance=told.get("chance"))

    @property
    def common(self) -> "Round":
        """The round without what differs between clients."""
        return replace(self, chance=None)

    def announce(self, *, steps: int | str) -> "Round":
        """Return the round with its number of local steps."""
        return replace(self, steps=length(steps))


@dataclass(frozen=True)
class Client:
    """A client, as a method sees it when it creates the client's personal state."""

    id: str
    """Name of the client."""
    num_outputs: int
    """K_i: number of outputs of a head for the client's labels."""
    seed: int
    """Seed of the client's own stream, for drawing its initial personal state."""


class Reply(NamedTuple):
    """The result of a client's local update. `tensors`, `numbers` and `letter` leave the client."""

    tensors: Tree
    """Tensors for the server, named like those of the shared model."""
    numbers: Tree
    """Single numbers for the server, such as the training loss `loss`."""
    personal: Tree
    """The client's new personal state, which stays on the client."""
    letter: Tree = {}  # noqa: RUF012 - nobody changes it
    """Tensors that the server sees singly, for a method that `Exchanges` letters. Everything else is added up."""


class Update(NamedTuple):
    """The aggregated replies of a cohort: sum_i w_i reply_i."""

    tensors: Tree
    numbers: Tree
    weight: Tensor
    """Sum of the weights w_i of the clients that replied."""

    def mean(self, name: str) -> Tensor:
        """Return the weighted mean of a number over the cohort."""
        return self.numbers[name] / self.weight
