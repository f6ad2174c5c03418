"""FedAdam and FedYogi: federated averaging with an adaptive optimizer at the server.

S. Reddi, Z. Charles, M. Zaheer, Z. Garrett, K. Rush, J. Konečný, S. Kumar, H. B. McMahan, "Adaptive Federated
Optimization", ICLR 2021, Algorithm 2.

    Server, round t, with m = 0 and v = ε² at first:
    1.  draw a cohort; send it the model w
    2.  Δ ← the mean of the w_i − w over the cohort
    3.  m ← β₁ m + (1 − β₁) Δ
    4.  v ← β₂ v + (1 − β₂) Δ²                       (FedAdam)
        v ← v − (1 − β₂) Δ² sign(v − Δ²)             (FedYogi)
    5.  w ← w + ρ m / (√v + ε)

    Client i:
    6.  w_i ← w;  τ times:  w_i ← w_i − η ∇ ℓ_i(w_i) on the next minibatch
    7.  send w_i − w

Step 4 is the only difference. Yogi's v moves by at most a share of Δ², while Adam's can fall by a share of itself.
The moments are not corrected for their bias, as in the paper. The paper's τ is ε here. Buffers are averaged.
"""

from abc import abstractmethod

from torch import Tensor

from coterie.core.fields import BatchSize, LocalRate, LocalSteps, ServerRate, Share, Users
from coterie.core.method import Data, Method, Reply, Round, Task, Tree, Update, settings
from coterie.core.steps import adaptive_memory, fine_tuned, server_move, sgd_reply
from coterie.core.tree import under, within


@settings
class FedOpt(Method):
    """Algorithm 2, with step 4 left open."""

    gradients_per_step = 1

    tau: LocalSteps = 10
    eta: LocalRate = 0.1
    rho: ServerRate = 0.01
    beta1: Share = 0.9
    """How long the server remembers the mean updates of earlier rounds."""
    beta2: Share = 0.99
    """How long the server remembers their squares."""
    epsilon: Share = 0.001
    """Scale below which updates count as small."""
    users: Users = "equal"
    batch_size: BatchSize = 0

    def init_memory(self, task: Task, shared: Tree) -> Tree:
        return adaptive_memory(task, shared, self.epsilon)

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> Reply:
        return sgd_reply(task, shared, personal, data, rnd.steps, self.eta, self.batch_size)

    @abstractmethod
    def second_moment(self, v: Tensor, delta: Tensor) -> Tensor:
        """Return the new v of step 4."""

    def server_update(self, task: Task, shared: Tree, memory: Tree, update: Update, rnd: Round) -> tuple[Tree, Tree]:
        delta, m, v = update.tensors, within("m", memory), within("v", memory)
        m = {name: self.beta1 * value + (1 - self.beta1) * delta[name] for name, value in m.items()}
        v = {name: self.second_moment(value, delta[name]) for name, value in v.items()}
        step = {name: value / (v[name].sqrt() + self.epsilon) for name, value in m.items()}
        return server_move(task, shared, update, self.rho, step), {**under("m", m), **under("v", v)}

    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        return fine_tuned(task, {**shared, **personal}, data, steps, self.eta, self.batch_size)


@settings
class FedAdam(FedOpt):
    """FedAvg with Adam at the server: squared updates are averaged over rounds, and scale the step."""

    def second_moment(self, v: Tensor, delta: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * delta**2


@settings
class FedYogi(FedOpt):
    """FedAvg with Yogi at the server: like Adam, but the average of squared updates changes more slowly."""

    def second_moment(self, v: Tensor, delta: Tensor) -> Tensor:
        return v - (1 - self.beta2) * delta**2 * (v - delta**2).sign()
