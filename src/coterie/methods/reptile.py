"""Reptile: a step towards where the clients' local steps lead.

A. Nichol, J. Achiam, J. Schulman, "On First-Order Meta-Learning Algorithms", arXiv:1803.02999, Algorithm 2, its tasks
the clients.

    Server, round t:
    1.  draw a cohort; send it the model w
    2.  w ← w + ρ (1/r) Σ_i (w_i − w), the sum over the r clients of the cohort

    Client i:
    3.  w_i ← w;  τ times:  w_i ← w_i − η ∇ ℓ_i(w_i) on the next minibatch
    4.  send w_i − w

With ρ = 1 this is FedAvg with equal clients. Buffers are averaged, whatever ρ is.
"""

from torch import Tensor

from coterie.core.method import Data, Length, Method, Passes, Rate, Round, Size, Task, Tree, settings
from coterie.core.steps import Users, fine_tuned, local_sgd, server_move, sgd_passes, shares
from coterie.core.tree import displacement, pick, shift


@settings
class Reptile(Method):
    """FedAvg of which the server takes only a part, or more than all."""

    tau: Length = 10
    """Local steps, or "2 epochs" of the client's examples."""
    eta: Rate = 0.1
    """Rate of the local steps."""
    rho: Rate = 0.5
    """Rate of the server's step: the share of the mean displacement that it takes."""
    users: Users = "equal"
    """Whether clients count alike or by size."""
    batch_size: Size = 0
    """Examples a step; 0 is all of the client's."""

    def plan(self, rnd: Round) -> Round:
        return rnd.announce(steps=self.tau)

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> tuple[Tree, Tree]:
        after, loss = local_sgd(task, {**shared, **personal}, data, rnd.steps, self.eta, self.batch_size)
        return {**displacement(after, shared), "loss": loss}, pick(after, personal)

    def passes(self, size: int, rnd: Round) -> Passes:
        return sgd_passes(size, rnd.steps, self.batch_size)

    def weights(self, sizes: Tensor, rnd: Round) -> Tensor:
        return shares(self.users, sizes)

    def server_update(self, task: Task, shared: Tree, memory: Tree, update: Tree, rnd: Round) -> tuple[Tree, Tree]:
        return server_move(task, shared, update, self.rho), memory

    def local_shared(self, shared: Tree, message: Tree) -> Tree:
        return shift(shared, message)

    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        return fine_tuned(task, {**shared, **personal}, data, steps, self.eta, self.batch_size)
