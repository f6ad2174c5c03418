"""FedAvg: federated averaging.

H. B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas, "Communication-Efficient Learning of Deep Networks
from Decentralized Data", AISTATS 2017, Algorithm 1.

    Server, round t:
    1.  draw a cohort; send it the model w
    2.  w ← Σ_i (N_i / Σ_j N_j) w_i, the sums over the cohort

    Client i:
    3.  w_i ← w;  τ times:  w_i ← w_i − η ∇ ℓ_i(w_i) on the next minibatch
    4.  send w_i − w

Deviation: a client sends how far it moved instead of where it arrived; the same in 2, as the weights sum to one.
"""

from torch import Tensor

from coterie.method import Count, Data, Method, Passes, Rate, Round, Size, Task, Tree, settings
from coterie.steps import local_sgd
from coterie.tree import displacement, pick, shift


@settings
class FedAvg(Method):
    """One model for all: local steps on all of it, then the size-weighted average."""

    tau: Count = 50
    """Local steps."""
    eta: Rate = 0.007
    """Rate of the local steps."""
    batch_size: Size = 0
    """Examples a step; 0 is all of the client's."""

    def plan(self, rnd: Round) -> Round:
        return rnd.announce(steps=self.tau)

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> tuple[Tree, Tree]:
        rates = [self.eta] * rnd.steps
        after, loss = local_sgd(task, {**shared, **personal}, data, rates, task.body + task.head, self.batch_size)
        return {**displacement(after, shared), "loss": loss}, pick(after, personal)

    def passes(self, size: int, rnd: Round) -> Passes:
        batch = min(self.batch_size, size) or size
        return Passes(batch, body_forwards=rnd.steps, body_backwards=rnd.steps, head_steps=rnd.steps)

    def weights(self, sizes: Tensor, rnd: Round) -> Tensor:
        return sizes / sizes.sum()

    def server_update(self, task: Task, shared: Tree, memory: Tree, update: Tree, rnd: Round) -> tuple[Tree, Tree]:
        return shift(shared, update), memory

    def local_shared(self, shared: Tree, message: Tree) -> Tree:
        return shift(shared, message)

    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        rates = [self.eta] * steps
        after, _ = local_sgd(task, {**shared, **personal}, data, rates, task.body + task.head, self.batch_size)
        return after
