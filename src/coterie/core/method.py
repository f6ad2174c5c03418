"""The contract: a method is a frozen dataclass of the paper's symbols with these pure functions and no other state.

A client function *returns* its personal state; what is not in `message` never leaves the client.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar, Literal, NamedTuple

from torch import Tensor

from coterie.core.data import Data, Inputs
from coterie.core.round import Client, Round
from coterie.core.task import Task
from coterie.core.tree import Tree
from coterie.settings import Count, Length, Rate, Size, settings

__all__ = [
    "Client",
    "Count",
    "Data",
    "Labels",
    "Length",
    "Method",
    "Passes",
    "Rate",
    "Round",
    "Size",
    "Task",
    "Tree",
    "settings",
]

Labels = Literal["local", "global"]


class Passes(NamedTuple):
    """What one local update costs a client, in passes over a batch; Task.flops turns it into operations."""

    batch: int
    body_forwards: int
    body_backwards: int
    head_steps: int
    frozen_head: int = 0
    """Passes each way through a head that is not trained."""
    head_forwards: int = 0
    feature_products: int = 0
    """Of all features with one vector, where the head is linear."""
    whole_forwards: int = 0
    """Passes forward through all, over all of the client's examples whatever the batch."""
    hessian_products: int = 0
    """Of the Hessian over all parameters with a vector: each a pass forward through all, and two backward."""


class Method(ABC):
    labels: ClassVar[Labels] = "global"
    """The default label space: "local" re-indexes each client's own classes, "global" is the union of all."""
    fixed_body: ClassVar[bool] = False
    """Whether the body is the same for all clients during a round, so that the cohort can pass through it at once."""
    everyone: ClassVar[bool] = False
    """Whether it means anything only if every client takes part in every round."""

    def init_shared(self, task: Task) -> Tree:
        """What the server sends in the first round."""
        return task.shared_model()

    def init_memory(self, task: Task, shared: Tree) -> Tree:
        """What the server keeps between rounds."""
        return {}

    def init_personal(self, task: Task, client: Client) -> Tree:
        """What a client starts from, whenever it is first visited: a function of the initial model only."""
        return task.personal_buffers()

    def settle(self, task: Task, personal: Tree, data: Data) -> Tree:
        """What a client makes of its initial personal state and its training data, once, before its first visit."""
        return personal

    def tuned(self, task: Task, clients: Iterable[Data]) -> "Method":
        """The method with whatever numbers theory asks of all clients' data; once, before the first round."""
        return self

    @abstractmethod
    def plan(self, rnd: Round) -> Round:
        """The server fixes and announces the round's local steps."""

    @abstractmethod
    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> tuple[Tree, Tree]:
        """A client's work: (message, personal). A scalar `loss` in the message is the training loss it saw."""

    def on_features(
        self, task: Task, personal: Tree, features: Tensor, data: Data, rnd: Round
    ) -> tuple[Tensor, Tree, Tree]:
        """With a fixed body, all that `local_update` does between one pass through it forward and one backward:
        (gradient over the features, whatever else is in the message, personal)."""
        raise NotImplementedError

    @abstractmethod
    def passes(self, size: int, rnd: Round) -> Passes:
        """The cost of `local_update` for a client with so many examples. The contract suite recounts it."""

    @abstractmethod
    def weights(self, sizes: Tensor, rnd: Round) -> Tensor:
        """w_i: the coefficients of the sum over the cohort."""

    @abstractmethod
    def server_update(self, task: Task, shared: Tree, memory: Tree, update: Tree, rnd: Round) -> tuple[Tree, Tree]:
        """The server's work on update = sum_i w_i message_i, with sum_i w_i as `weight`: (shared, memory)."""

    def emphasis(self) -> float | None:
        """What fast personalization counts against initial success, in the first round, where theory knows it."""
        return None

    def remarks(self, update: Tree, rnd: Round) -> list[str]:
        """What whoever watches should be told of this round's aggregate."""
        return []

    def receive(self, task: Task, shared: Tree, personal: Tree, rnd: Round) -> Tree:
        """What a client of the cohort does with the new broadcast."""
        return personal

    def local_shared(self, shared: Tree, message: Tree) -> Tree:
        """The shared part as a client holds it right after its local update: unmoved, unless the method moves it."""
        return shared

    def personal_params(self, task: Task, shared: Tree, personal: Tree) -> Tree:
        """The client's model."""
        return {**shared, **personal}

    def predict(self, task: Task, shared: Tree, personal: Tree, x: Inputs) -> Tensor:
        return task.outputs(self.personal_params(task, shared, personal), x)

    @abstractmethod
    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        """Personal state made from a little local work alone: for a new user, or to refresh one before use.

        `steps` may be Epochs."""
