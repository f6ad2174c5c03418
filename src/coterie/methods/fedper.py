"""FedPer: federated averaging of the body alone.

M. G. Arivazhagan, V. Aggarwal, A. K. Singh, S. Choudhary, "Federated Learning with Personalization Layers",
arXiv:1912.00818, Algorithms 1 and 2.

    Server, round t:
    1.  draw a cohort; send it θ
    2.  θ ← Σ_i (N_i / Σ_j N_j) θ_i, the sums over the cohort

    Client i, with its own head W_i (drawn at its first visit):
    3.  θ_i ← θ;  τ times:  (θ_i, W_i) ← (θ_i, W_i) − β ∇ ℓ_i(W_i, θ_i), both at once, on the next minibatch
    4.  send θ_i − θ; keep W_i

With an empty head this is FedAvg.
Deviation: in the paper all clients take part in each round. The cohort stands for them, as in FedAvg.
"""

from typing import ClassVar

from torch import Tensor

from coterie.core.method import Client, Data, Labels, Length, Method, Passes, Rate, Round, Size, Task, Tree, settings
from coterie.core.steps import fine_tuned, local_sgd, sgd_passes
from coterie.core.tree import displacement, pick, shift


@settings
class FedPer(Method):
    """Shared body, personal heads: joint local steps on both, then the size-weighted average of the bodies."""

    labels: ClassVar[Labels] = "local"

    tau: Length = 50
    """Local steps, or "2 epochs" of the client's examples."""
    beta: Rate = 0.007
    """Rate of the local steps."""
    batch_size: Size = 0
    """Examples a step; 0 is all of the client's."""

    def init_shared(self, task: Task) -> Tree:
        return task.shared_body()

    def init_personal(self, task: Task, client: Client) -> Tree:
        head = task.new_head(client.num_outputs, client.seed) if task.head else {}
        return {**head, **task.personal_buffers()}

    def plan(self, rnd: Round) -> Round:
        return rnd.announce(steps=self.tau)

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> tuple[Tree, Tree]:
        after, loss = local_sgd(task, {**shared, **personal}, data, rnd.steps, self.beta, self.batch_size)
        return {**displacement(after, shared), "loss": loss}, pick(after, personal)

    def passes(self, size: int, rnd: Round) -> Passes:
        return sgd_passes(size, rnd.steps, self.batch_size)

    def weights(self, sizes: Tensor, rnd: Round) -> Tensor:
        return sizes / sizes.sum()

    def server_update(self, task: Task, shared: Tree, memory: Tree, update: Tree, rnd: Round) -> tuple[Tree, Tree]:
        return shift(shared, update), memory

    def local_shared(self, shared: Tree, message: Tree) -> Tree:
        return shift(shared, message)

    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        """Step 3; the body that comes out stays with the client."""
        return fine_tuned(task, {**shared, **personal}, data, steps, self.beta, self.batch_size)
