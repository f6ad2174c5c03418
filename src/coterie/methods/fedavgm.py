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

from coterie.core.fields import BatchSize, LocalSteps, Rate, ServerRate, Share, Users
from coterie.core.method import Data, Method, Reply, Round, Task, Tree, Update, settings
from coterie.core.steps import fine_tuned, server_move, sgd_reply


@settings
class FedAvgM(Method):
    """FedAvg with a server that keeps moving in the direction of earlier rounds."""

    gradients_per_step = 1

    tau: LocalSteps = 10
    eta: Rate = 0.01
    """Learning rate of the local steps. Momentum makes it act like eta / (1 - beta)."""
    rho: ServerRate = 1.0
    beta: Share = 0.9
    """Momentum of the server."""
    users: Users = "equal"
    batch_size: BatchSize = 0

    def init_memory(self, task: Task, shared: Tree) -> Tree:
        return {name: torch.zeros_like(shared[name]) for name in task.params}

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> Reply:
        return sgd_reply(task, shared, personal, data, rnd.steps, self.eta, self.batch_size)

    def server_update(self, task: Task, shared: Tree, memory: Tree, update: Update, rnd: Round) -> tuple[Tree, Tree]:
        m = {name: self.beta * value + update.tensors[name] for name, value in memory.items()}
        return server_move(task, shared, update, self.rho, m), m

    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        return fine_tuned(task, {**shared, **personal}, data, steps, self.eta, self.batch_size)
