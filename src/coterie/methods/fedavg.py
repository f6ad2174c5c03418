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

from coterie.core.method import Data, Length, Method, Passes, Rate, Round, Size, Task, Tree, settings
from coterie.core.steps import Users, fine_tuned, local_sgd, sgd_passes, shares
from coterie.core.tree import displacement, pick, shift


@settings
class FedAvg(Method):
    """One model for all: local steps on all of it, then the size-weighted average."""

    tau: Length = 50
    """Local steps, or "2 epochs" of the client's examples."""
    eta: Rate = 0.007
    """Rate of the local steps."""
    users: Users = "sizes"
    """Whether clients count alike or by size."""
    batch_size: Size = 0
    """Examples a step; 0 is all of the client's."""

    def plan(self, rnd: Round) -> Round:
        return rnd.announce(steps=self.tau)

    def emphasis(self) -> float | None:
        return None if isinstance(self.tau, str) else (self.tau - 1) * self.eta / 2

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> tuple[Tree, Tree]:
        after, loss = local_sgd(task, {**shared, **personal}, data, rnd.steps, self.eta, self.batch_size)
        return {**displacement(after, shared), "loss": loss}, pick(after, personal)

    def passes(self, size: int, rnd: Round) -> Passes:
        return sgd_passes(size, rnd.steps, self.batch_size)

    def weights(self, sizes: Tensor, rnd: Round) -> Tensor:
        return shares(self.users, sizes)

    def server_update(self, task: Task, shared: Tree, memory: Tree, update: Tree, rnd: Round) -> tuple[Tree, Tree]:
        return shift(shared, update), memory

    def local_shared(self, shared: Tree, message: Tree) -> Tree:
        return shift(shared, message)

    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        return fine_tuned(task, {**shared, **personal}, data, steps, self.eta, self.batch_size)
