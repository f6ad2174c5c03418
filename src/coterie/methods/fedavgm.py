"""FedAvgM: federated averaging with momentum at the server.

T. H. Hsu, H. Qi, M. Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification", arXiv:1909.06335.

    Server, round t, with m = 0 at first:
    1.  draw a cohort; send it the model w
    2.  Δ ← the mean of the w_i − w over the cohort
    3.  m ← β m + Δ;  w ← w + ρ m

    Client i:
    4.  w_i ← w;  τ times:  w_i ← w_i − η ∇ ℓ_i(w_i) on the next minibatch
    5.  send w_i − w

With β = 0 and ρ = 1 this is FedAvg with equal clients. Buffers are averaged.
"""

import torch
from torch import Tensor

from coterie.core.method import Data, Length, Method, Passes, Rate, Round, Size, Task, Tree, settings
from coterie.core.steps import Users, fine_tuned, local_sgd, server_move, sgd_passes, shares
from coterie.core.tree import displacement, pick, shift
from coterie.settings import Share


@settings
class FedAvgM(Method):
    """FedAvg whose server goes on in the direction of earlier rounds."""

    tau: Length = 10
    """Local steps, or "2 epochs" of the client's examples."""
    eta: Rate = 0.01
    """Rate of the local steps; the server's memory makes it as much as eta / (1 - beta)."""
    rho: Rate = 1.0
    """Rate of the server's step."""
    beta: Share = 0.9
    """How long the server remembers displacements."""
    users: Users = "equal"
    """Whether clients count alike or by size."""
    batch_size: Size = 0
    """Examples a step; 0 is all of the client's."""

    def init_memory(self, task: Task, shared: Tree) -> Tree:
        return {name: torch.zeros_like(shared[name]) for name in task.body + task.head}

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
        m = {name: self.beta * value + update[name] for name, value in memory.items()}
        return server_move(task, shared, {**update, **m}, self.rho), m

    def local_shared(self, shared: Tree, message: Tree) -> Tree:
        return shift(shared, message)

    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        return fine_tuned(task, {**shared, **personal}, data, steps, self.eta, self.batch_size)
