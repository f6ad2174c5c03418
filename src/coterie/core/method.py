"""The contract of a method: two required functions, and FedAvg's behaviour as the default for the rest.

A method is a frozen dataclass of hyper-parameters, named after the symbols of its paper, with pure functions and no
other state: the decorator `@settings` makes it one. A client sends `Reply.tensors` and `Reply.numbers`, and nothing
else; `Reply.letter` too if the method `Exchanges` letters. `Reply.personal` stays on the client. A function returns the
complete new personal state, and mutates nothing.

A method imports what it needs from here, and from `core.fields` (types of hyper-parameters), `core.steps` (local and
server steps) and `core.tree`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from torch import Tensor

from coterie.core.data import Data, Inputs
from coterie.core.passes import Passes, sgd_passes
from coterie.core.round import Client, Reply, Round, Update
from coterie.core.steps.head import around_features
from coterie.core.steps.server import shares
from coterie.core.task import Task
from coterie.core.tree import Tree, pick, shift
from coterie.errors import UserError
from coterie.settings import settings

__all__ = [
    "AdaptsHead",
    "Calibrates",
    "Client",
    "Data",
    "Exchanges",
    "FixedBody",
    "Inputs",
    "Labels",
    "Method",
    "Passes",
    "Prepares",
    "Receives",
    "Reply",
    "Round",
    "Task",
    "Tree",
    "Update",
    "settings",
    "sgd_passes",
]

Labels = Literal["local", "global"]


class Method(ABC):
    """A federated method. A subclass defines `local_update` and `adapt`; the rest behaves like FedAvg by default.

    The defaults use three fields if the method has them: `tau` (number of local steps), `users` (weights of clients)
    and `batch_size` (examples per local step).
    """

    labels: ClassVar[Labels] = "global"
    """Default of the setting model.labels: "local" numbers each client's own classes, "global" all classes together."""
    sends: ClassVar[Literal["move", "gradient"]] = "move"
    """What `Reply.tensors` holds: how far the client moved the shared model, or a gradient at the model it received. A
    method that sends gradients also defines `server_update`, because the default adds what was sent to the model."""
    everyone: ClassVar[bool] = False
    """Whether every client must take part in every round."""
    gradients_per_step: ClassVar[int | None] = None
    """Cost of a local step, in gradients over all parameters. None: `passes` declares it, or operations are counted."""

    @abstractmethod
    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> Reply:
        """Do one client's work in a round.

        Args:
            task: the model and its loss, as pure functions.
            shared: what the server sent.
            personal: the state of this client, which stays with it.
            data: its training examples.
            rnd: the announced round, with the number of local steps.

        Returns:
            `tensors` named like those in `shared`, scalar `numbers` (such as `loss`), and the new `personal` state.
        """

    @abstractmethod
    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        """Return the personal state after `steps` local steps (or Epochs), without sending anything.

        It serves new users, and refreshes the model of an existing user before use.
        """

    # -- initial values

    def init_shared(self, task: Task) -> Tree:
        """Return what the server sends in the first round. Default: the whole initial model."""
        return task.shared_model()

    def init_memory(self, task: Task, shared: Tree) -> Tree:
        """Return what the server keeps between rounds. Default: nothing."""
        return {}

    def init_personal(self, task: Task, client: Client) -> Tree:
        """Return the personal state of a client before its first round. Default: the buffers that stay with it.

        Its tensors may be on the CPU, as new heads are, or on the device of the model.
        """
        return task.personal_buffers()

    # -- the server's side of a round

    def plan(self, rnd: Round) -> Round:
        """Fix the number of local steps of a round. Default: the field `tau`, or one step."""
        return rnd.announce(steps=getattr(self, "tau", 1))

    def weights(self, sizes: Tensor, rnd: Round) -> Tensor:
        """Return the weights w_i of the sum of replies. Default: a mean, weighted as the field `users` says."""
        return shares(getattr(self, "users", "sizes"), sizes)

    def server_update(self, task: Task, shared: Tree, memory: Tree, update: Update, rnd: Round) -> tuple[Tree, Tree]:
        """Return the new (shared, memory). Default: move the shared model by the aggregated displacement.

        The default needs a displacement of every tensor. A method whose clients send only some defines this function.
        """
        if missing := [name for name in shared if name not in update.tensors]:
            raise UserError(
                f"{type(self).__name__}.local_update sent no {missing[0]!r}, and the default server_update moves every "
                "tensor of the shared model; send all of them, omit it in init_shared, or define server_update"
            )
        return shift(shared, update.tensors), memory

    def notes(self, update: Update, rnd: Round) -> dict[str, float | str]:
        """Return what to record about a round: numbers, or text, which is also shown as a warning. Default: nothing."""
        return {}

    # -- the client's model

    def personal_params(self, task: Task, shared: Tree, personal: Tree) -> Tree:
        """Return the parameters of the client's model. Default: the overlay of personal on shared."""
        return {**shared, **personal}

    def predict(self, task: Task, shared: Tree, personal: Tree, x: Inputs) -> Tensor:
        """Return the outputs of the client's model."""
        return task.outputs(self.personal_params(task, shared, personal), x)

    # -- cost

    def passes(self, size: int, rnd: Round) -> Passes | None:
        """Return the cost of `local_update` for a client with `size` examples; None to have its operations counted."""
        if self.gradients_per_step is None:
            return None
        return sgd_passes(size, rnd.steps, getattr(self, "batch_size", 0), each=self.gradients_per_step)


class FixedBody(Method):
    """A method whose body stays fixed during a round, so that a whole cohort can pass through it at once.

    It defines `on_features` instead of `local_update`. The engine `fused` needs this.
    """

    sends = "gradient"

    @abstractmethod
    def on_features(
        self, task: Task, personal: Tree, features: Tensor, data: Data, rnd: Round
    ) -> tuple[Tensor, Tree, Tree]:
        """Do everything that happens between the forward and the backward pass through the body.

        The inputs have passed the body, so `data.x` is empty here. Returns (gradient over the features, numbers for the
        server, new values of the personal state).
        """

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> Reply:
        """Pass through the body forward, call `on_features`, and pass backward. The reply holds the body's gradient."""
        rest = data._replace(x=data.mask.new_empty(*data.mask.shape, 0))
        return around_features(
            task, shared, personal, data, lambda features: self.on_features(task, personal, features, rest, rnd)
        )


class AdaptsHead(Method):
    """A method whose adaptation trains the head on fixed features, so that an evaluation computes them only once.

    It defines `adapt_head` instead of `adapt`, and its clients predict by the overlay of personal on shared.
    """

    @abstractmethod
    def adapt_head(self, task: Task, shared: Tree, personal: Tree, features: Tensor, data: Data, steps: int) -> Tree:
        """Return the head after `steps` local steps (or Epochs) on the features of the client's examples."""

    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        """Pass through the body once and call `adapt_head`. Local buffers are kept as the pass leaves them."""
        features, _, buffers = task.body_vjp({**shared, **personal}, data.x)
        head = self.adapt_head(task, shared, personal, features, data, steps)
        return {**pick({**personal, **buffers}, personal), **head}


class Prepares(Method):
    """A method whose clients prepare once, before their first round."""

    @abstractmethod
    def prepare(self, task: Task, personal: Tree, data: Data) -> Tree:
        """Return the personal state after preparation on the client's training data, such as a local optimum."""


class Calibrates(Method):
    """A method with hyper-parameters that are computed, before the first round, from a few numbers of every client."""

    @property
    @abstractmethod
    def is_calibrated(self) -> bool:
        """Whether all hyper-parameters are numbers already, so that `measure` need not be called."""

    @abstractmethod
    def measure(self, task: Task, data: Data) -> dict[str, float]:
        """Return the numbers that one client computes from its training data and announces to the server."""

    @abstractmethod
    def calibrate(self, measured: Mapping[str, Mapping[str, float]]) -> Self:
        """Return the method with its hyper-parameters filled in, from the numbers of each client by name."""


class Receives(Method):
    """A method whose clients update their personal state when the new shared model arrives, at the end of a round."""

    @abstractmethod
    def receive(self, task: Task, shared: Tree, personal: Tree, rnd: Round) -> Tree:
        """Return the personal state of a client of the cohort once the new shared model has arrived."""


class Exchanges(Method):
    """A method whose clients each send the server a letter, `Reply.letter`, and get one back at the end of the round.

    The server sees each letter by itself. No aggregation rule applies to letters, neither a robust nor a private one.
    """

    @abstractmethod
    def letter_form(self, task: Task) -> Tree:
        """Return a letter as clients send it. Replies with other names, shapes or types in their letter are refused."""

    @abstractmethod
    def exchange(self, letters: Tree, rnd: Round) -> Tree:
        """Return the letters that go back, on the server. Row j of each tensor is from, or for, the j-th client.

        The rows are those of the clients whose replies were accepted, in the order of their numbers.
        """

    @abstractmethod
    def read(self, task: Task, personal: Tree, letter: Tree, rnd: Round) -> Tree:
        """Return the personal state of a client of the cohort once its letter has arrived."""
