"""Centralised: one model on all data together, the reference for what sharing everything would give.

    Server, round t:
    1.  send the model w to every client
    2.  w ← w − ρ Σ_i (N_i / N) g_i, or Adam on that gradient

    Client i:
    3.  send g_i = ∇ ℓ_i(w)

As every client takes part, the sum in 2 is the gradient of the mean loss over the pooled examples, and a round is one
step of gradient descent on it, as if they lay in one place. There is one step a round and no more. With BatchNorm this
is not quite so: each client normalizes its own examples by their own statistics.
"""

from typing import ClassVar, Literal

from torch import Tensor

from coterie.core.method import Data, Method, Passes, Rate, Round, Task, Tree, settings
from coterie.core.steps import adam_memory, fine_tuned, gradient, server_step, sgd_passes, travelling
from coterie.core.tree import pick


@settings
class Centralised(Method):
    """One model, one step a round on the data of all clients pooled; every client takes part in every round."""

    everyone: ClassVar[bool] = True

    rho: Rate = 0.003
    """Rate of the server's step, and of the steps by which a client adapts the model to itself."""
    server: Literal["sgd", "adam"] = "adam"
    """What the server does with the gradient."""

    def init_memory(self, task: Task, shared: Tree) -> Tree:
        return adam_memory(pick(shared, task.body + task.head)) if self.server == "adam" else {}

    def plan(self, rnd: Round) -> Round:
        return rnd.announce(steps=1)

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> tuple[Tree, Tree]:
        params = {**shared, **personal}
        w = pick(params, task.body + task.head)
        g, loss, buffers = gradient(lambda w: task.loss({**params, **w}, data), w)
        return {**g, **travelling(task, shared, buffers), "loss": loss}, pick({**personal, **buffers}, personal)

    def passes(self, size: int, rnd: Round) -> Passes:
        return sgd_passes(size, 1)

    def weights(self, sizes: Tensor, rnd: Round) -> Tensor:
        return sizes / rnd.num_examples

    def server_update(self, task: Task, shared: Tree, memory: Tree, update: Tree, rnd: Round) -> tuple[Tree, Tree]:
        return server_step(task, shared, memory, update, self.rho)

    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        return fine_tuned(task, {**shared, **personal}, data, steps, self.rho)
