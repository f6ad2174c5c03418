"""The boundary between server and clients: everyone who does local work, on this machine or on others.

The shared model and the announced Round go down; tensors and single numbers come up, already aggregated. Methods that
`Exchanges` letters also send tensors to and from single clients. A simulation, a cluster and real sites implement the
same interface. The server needs nothing else of its clients.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from coterie.core.data import Index
from coterie.core.round import Round, Update
from coterie.core.tree import Tree
from coterie.data.ragged import Ragged
from coterie.measure.cost import Cost

Counts = dict[int, dict[str, float]]
"""For each client the counts of `Objective.scores`."""
NOT_FINITE = "has values that are NaN or infinite"
"""End of the reason why a reply is refused whose form is right."""


@dataclass
class Replies:
    """What comes back from a cohort."""

    update: Update | None
    """The aggregate of the replies; None if nobody replied."""
    answered: list[int] = field(default_factory=list)
    """Clients whose replies are in the aggregate."""
    letters: dict[int, Tree] = field(default_factory=dict)
    """Letters of these clients, which are empty unless the method `Exchanges` them."""
    refused: dict[int, str] = field(default_factory=dict)
    """Clients whose replies do not fit the shared model or are not finite, with the reason. They count as if they had
    not answered."""
    scores: Counts = field(default_factory=dict)
    """Counts right after the local update, if they were asked for."""
    cost: Cost = Cost()  # noqa: RUF009 - it is frozen
    """Cost of the local updates for the clients, without what was sent to them."""
    scoring_seconds: float = 0.0
    digests: dict[int, str] = field(default_factory=dict)
    """sha256 of each message in the aggregate, if replies come as messages."""


class Scored(NamedTuple):
    """The evaluation of some clients."""

    as_is: dict[str, Counts]
    """By split, the training examples among them: counts of the model as it is."""
    adapted: dict[str, Counts]
    """By split: counts after adaptation."""
    stored_bytes: dict[int, int]
    """Size of what the client keeps for itself between rounds."""


class Clients(ABC):
    """All clients of a federation, as the server reaches them. A client is numbered by its place in `ids`."""

    ids: Sequence[str]
    """Names of the clients."""
    is_new: NDArray[np.bool_]
    """Which clients are held out of training, as new users."""
    splits: Sequence[str]
    """Splits that clients can be evaluated on: "test", and "validation" if there is one."""
    classes: Ragged
    """Label set of each client, as places in the list of all classes."""
    engine_name: str
    """How the clients are computed, such as "vmap"."""
    reason: str
    """Why they are computed in this way."""
    on_prepared: Callable[[int], object] = staticmethod(lambda _: None)
    """Called with the number of clients that have prepared so far, each time that one has."""
    on_scored: Callable[[int], object] = staticmethod(lambda _: None)
    """Called during an evaluation, each time that some clients were scored, with their number."""

    @abstractmethod
    def sizes(self, split: str = "train") -> Index:
        """Return the number of examples of each client."""

    @abstractmethod
    def update(self, shared: Tree, cohort: Sequence[int], weights: Tensor, rnd: Round, scored: bool) -> Replies:
        """Let a cohort do its local updates, and aggregate the replies.

        What clients keep for themselves stays with them, pending until `keep`. `scored` asks for their scores right
        after the local update, before aggregation.
        """

    @abstractmethod
    def keep(self, shared: Tree, letters: Mapping[int, Tree], rnd: Round) -> None:
        """Tell the clients of the last `update` that the round counts, and what the new shared model is.

        If the method `Exchanges` letters, each client that answered also gets its own letter, and no other client's.
        """

    @abstractmethod
    def score(self, shared: Tree, who: Sequence[int], adapt_steps: int) -> Scored:
        """Evaluate clients as they are and after adaptation. Nothing changes on the clients."""

    @abstractmethod
    def personal(self, client: int) -> Tree:
        """Return a client's personal state, where it can be known."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a digest of the clients and of what is known of their data."""

    @abstractmethod
    def save(self, folder: Path, index: int, trees: Mapping[str, Tree], run: str) -> None:
        """Write a checkpoint: the server's trees and, unless clients have disks of their own, what they keep."""

    @abstractmethod
    def restore(self, folder: Path, run: str) -> tuple[int, dict[str, Tree]]:
        """Read the newest whole checkpoint. Returns (round, the server's trees), or (0, {}) without one."""

    def end(self, shared: Tree, index: int) -> None:  # noqa: B027
        """Tell clients that the run has ended after a round, and what the final shared model is."""

    def close(self) -> None:  # noqa: B027
        """Release what was started for these clients."""
