"""FedSGD: one gradient a round.

H. B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas, "Communication-Efficient Learning of Deep Networks
from Decentralized Data", AISTATS 2017, section 2.

    Server, round t:
    1.  draw a cohort; send it the model w
    2.  w ← w − η Σ_i (N_i / Σ_j N_j) ∇ ℓ_i(w), the sums over the cohort

    Client i:
    3.  send −η ∇ ℓ_i(w)

This is FedAvg with one local step, FedDecay with β = 0, and FOMAML with one step, to the last bit.
Deviation: in the paper clients send ∇ ℓ_i(w), and the server multiplies; with a batch size, 3 is on a minibatch.
"""

from torch import Tensor

from coterie.core.method import Data, Method, Passes, Rate, Round, Size, Task, Tree, settings
from coterie.core.steps import Users, fine_tuned, local_sgd, sgd_passes, shares
from coterie.core.tree import displacement, pick, shift


@settings
class FedSGD(Method):
    """One model for all, one gradient of each client a round."""

    eta: Rate = 0.1
    """Rate of the step, and of the steps by which a client adapts the model to itself."""
    users: Users = "sizes"
    """Whether clients count alike or by size."""
    batch_size: Size = 0
    """Examples a step; 0 is all of the client's."""

    def plan(self, rnd: Round) -> Round:
        return rnd.announce(steps=1)

    def emphasis(self) -> float:
        return 0.0

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> tuple[Tree, Tree]:
        after, loss = local_sgd(task, {**shared, **personal}, data, 1, self.eta, self.batch_size)
        return {**displacement(after, shared), "loss": loss}, pick(after, personal)

    def passes(self, size: int, rnd: Round) -> Passes:
        return sgd_passes(size, 1, self.batch_size)

    def weights(self, sizes: Tensor, rnd: Round) -> Tensor:
        return shares(self.users, sizes)

    def server_update(self, task: Task, shared: Tree, memory: Tree, update: Tree, rnd: Round) -> tuple[Tree, Tree]:
        return shift(shared, update), memory

    def local_shared(self, shared: Tree, message: Tree) -> Tree:
        return shift(shared, message)

    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        return fine_tuned(task, {**shared, **personal}, data, steps, self.eta, self.batch_size)
