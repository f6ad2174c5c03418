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

from coterie.core.fields import BatchSize, LocalRate, LocalSteps, Rate, Users
from coterie.core.method import Data, Method, Reply, Round, Task, Tree, Update, settings
from coterie.core.steps import fine_tuned, server_move, sgd_reply


@settings
class Reptile(Method):
    """FedAvg with a server that moves by a fraction, or a multiple, of the mean displacement."""

    gradients_per_step = 1

    tau: LocalSteps = 10
    eta: LocalRate = 0.1
    rho: Rate = 0.5
    """Fraction of the mean displacement by which the server moves."""
    users: Users = "equal"
    batch_size: BatchSize = 0

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> Reply:
        return sgd_reply(task, shared, personal, data, rnd.steps, self.eta, self.batch_size)

    def server_update(self, task: Task, shared: Tree, memory: Tree, update: Update, rnd: Round) -> tuple[Tree, Tree]:
        return server_move(task, shared, update, self.rho), memory

    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        return fine_tuned(task, {**shared, **personal}, data, steps, self.eta, self.batch_size)
