"""Local: every client for itself, the reference from below.

    Client i, with its own model v_i (the initial body, and a head of its own):
    1.  τ times:  v_i ← v_i − β ∇ ℓ_i(v_i) on the next minibatch

There is nothing to send but the training loss, and the server only keeps the clock: who is drawn in a round trains.
"""

from typing import ClassVar

from torch import Tensor

from coterie.core.method import Client, Data, Labels, Length, Method, Passes, Rate, Round, Size, Task, Tree, settings
from coterie.core.steps import fine_tuned, local_sgd, sgd_passes


@settings
class Local(Method):
    """No federation: each client trains a model of its own, and nothing is sent."""

    labels: ClassVar[Labels] = "local"

    tau: Length = 50
    """Local steps a visit, or "2 epochs" of the client's examples."""
    beta: Rate = 0.007
    """Rate of the local steps."""
    batch_size: Size = 0
    """Examples a step; 0 is all of the client's."""

    def init_shared(self, task: Task) -> Tree:
        return {}

    def init_personal(self, task: Task, client: Client) -> Tree:
        head = task.new_head(client.num_outputs, client.seed) if task.head else {}
        return {**task.initial, **head}

    def plan(self, rnd: Round) -> Round:
        return rnd.announce(steps=self.tau)

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> tuple[Tree, Tree]:
        after, loss = local_sgd(task, personal, data, rnd.steps, self.beta, self.batch_size)
        return {"loss": loss}, after

    def passes(self, size: int, rnd: Round) -> Passes:
        return sgd_passes(size, rnd.steps, self.batch_size)

    def weights(self, sizes: Tensor, rnd: Round) -> Tensor:
        return sizes / sizes.sum()

    def server_update(self, task: Task, shared: Tree, memory: Tree, update: Tree, rnd: Round) -> tuple[Tree, Tree]:
        return shared, memory

    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        return fine_tuned(task, personal, data, steps, self.beta, self.batch_size)
