"""FedAdam: federated averaging with Adam at the server.

S. Reddi, Z. Charles, M. Zaheer, Z. Garrett, K. Rush, J. Konečný, S. Kumar, H. B. McMahan, "Adaptive Federated
Optimization", ICLR 2021, Algorithm 2.

    Server, round t, with m = 0 and v = ε² at first:
    1.  draw a cohort; send it the model w
    2.  Δ ← the mean of the w_i − w over the cohort
    3.  m ← β₁ m + (1 − β₁) Δ;  v ← β₂ v + (1 − β₂) Δ²;  w ← w + ρ m / (√v + ε)

    Client i:
    4.  w_i ← w;  τ times:  w_i ← w_i − η ∇ ℓ_i(w_i) on the next minibatch
    5.  send w_i − w

Moments are not corrected for their bias, as in the paper, whose τ is ε here. Buffers are averaged.
"""

from torch import Tensor

from coterie.core.method import Data, Length, Method, Passes, Rate, Round, Size, Task, Tree, settings
from coterie.core.steps import Users, adaptive_move, fine_tuned, local_sgd, moments, sgd_passes, shares
from coterie.core.tree import displacement, pick, shift
from coterie.settings import Share


@settings
class FedAdam(Method):
    """FedAvg whose server takes the mean displacement as a gradient, and Adam for the step."""

    tau: Length = 10
    """Local steps, or "2 epochs" of the client's examples."""
    eta: Rate = 0.1
    """Rate of the local steps."""
    rho: Rate = 0.01
    """Rate of the server's step."""
    beta1: Share = 0.9
    """How long the server remembers displacements."""
    beta2: Share = 0.99
    """How long it remembers their squares."""
    epsilon: Share = 0.001
    """What displacements are small against."""
    users: Users = "equal"
    """Whether clients count alike or by size."""
    batch_size: Size = 0
    """Examples a step; 0 is all of the client's."""

    def init_memory(self, task: Task, shared: Tree) -> Tree:
        return moments(task, shared, self.epsilon)

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
        kept = {}
        for name in task.body + task.head:
            delta, m, v = update[name], memory[f"m.{name}"], memory[f"v.{name}"]
            kept[f"m.{name}"] = self.beta1 * m + (1 - self.beta1) * delta
            kept[f"v.{name}"] = self.beta2 * v + (1 - self.beta2) * delta**2
        return adaptive_move(task, shared, kept, update, self.rho, self.epsilon), kept

    def local_shared(self, shared: Tree, message: Tree) -> Tree:
        return shift(shared, message)

    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        return fine_tuned(task, {**shared, **personal}, data, steps, self.eta, self.batch_size)
