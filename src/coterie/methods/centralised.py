"""Centralised: one model on all data together, the reference for what sharing all data would give.

    Server, round t:
    1.  send the model w to every client
    2.  w ← w − ρ Σ_i (N_i / N) g_i, or Adam on that gradient

    Client i:
    3.  send g_i = ∇ ℓ_i(w)

Every client takes part, so the sum in step 2 is the gradient of the mean loss over the pooled examples. A round is one
step of gradient descent on it, as if all data were in one place. BatchNorm makes a small difference: each client
normalizes its own examples by their own statistics.
"""

from typing import Literal

from torch import Tensor

from coterie.core.fields import Rate
from coterie.core.method import Data, Method, Reply, Round, Task, Tree, Update, settings
from coterie.core.steps import adam_memory, fine_tuned, local_gradient, server_step, travelling
from coterie.core.tree import pick


@settings
class Centralised(Method):
    """One model and one step per round on the pooled data. Every client takes part in every round."""

    sends = "gradient"
    everyone = True
    gradients_per_step = 1

    rho: Rate = 0.003
    """Learning rate of the server's step, and of the steps by which a client adapts the model."""
    server: Literal["sgd", "adam"] = "adam"
    """Optimizer of the server."""

    def init_memory(self, task: Task, shared: Tree) -> Tree:
        return adam_memory(pick(shared, task.params)) if self.server == "adam" else {}

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> Reply:
        g, loss, buffers = local_gradient(task, {**shared, **personal}, data, task.params)
        tensors = {**g, **travelling(task, shared, buffers)}
        return Reply(tensors, {"loss": loss}, pick({**personal, **buffers}, personal))

    def weights(self, sizes: Tensor, rnd: Round) -> Tensor:
        return sizes / rnd.num_examples

    def server_update(self, task: Task, shared: Tree, memory: Tree, update: Update, rnd: Round) -> tuple[Tree, Tree]:
        return server_step(task, shared, memory, update, self.rho)

    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        return fine_tuned(task, {**shared, **personal}, data, steps, self.rho)
