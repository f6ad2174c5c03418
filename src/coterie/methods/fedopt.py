"""FedOpt: federated averaging with an optimizer at the server; FedAvgM, FedAdam and FedYogi.

S. Reddi, Z. Charles, M. Zaheer, Z. Garrett, K. Rush, J. Konečný, S. Kumar, H. B. McMahan, "Adaptive Federated
Optimization", ICLR 2021, Algorithms 1 and 2. FedAvgM: T. H. Hsu, H. Qi, M. Brown, "Measuring the Effects of
Non-Identical Data Distribution for Federated Visual Classification", arXiv:1909.06335.

    Server, round t, with m = 0 and v = ε² at first:
    1.  draw a cohort; send it the model w
    2.  Δ ← the mean of the w_i − w over the cohort
    3.  momentum:  m ← β₁ m + Δ;  w ← w + ρ m
        adam:      m ← β₁ m + (1 − β₁) Δ;  v ← β₂ v + (1 − β₂) Δ²;  w ← w + ρ m / (√v + ε)
        yogi:      the same, with  v ← v − (1 − β₂) Δ² sign(v − Δ²)

    Client i:
    4.  w_i ← w;  τ times:  w_i ← w_i − η ∇ ℓ_i(w_i) on the next minibatch
    5.  send w_i − w

Moments are not corrected for their bias, as in the paper. ε is the paper's τ. Momentum with β₁ = 0 and ρ = 1 is FedAvg
with equal clients. Buffers are averaged.
"""

from typing import Literal

import torch
from torch import Tensor

from coterie.method import Count, Data, Method, Passes, Rate, Round, Size, Task, Tree, settings
from coterie.settings import Share
from coterie.steps import Users, local_sgd, server_move, shares
from coterie.tree import displacement, pick, shift


@settings
class FedOpt(Method):
    """FedAvg whose server takes the mean displacement as a gradient: by momentum, Adam or Yogi."""

    tau: Count = 10
    """Local steps."""
    eta: Rate = 0.1
    """Rate of the local steps."""
    server: Literal["momentum", "adam", "yogi"] = "adam"
    """What the server does with the mean displacement: FedAvgM, FedAdam or FedYogi."""
    rho: Rate = 0.01
    """Rate of the server's step. Momentum wants about 1, the others much less."""
    beta1: Share = 0.9
    """How long the server remembers displacements."""
    beta2: Share = 0.99
    """How long it remembers their squares; not used by momentum."""
    epsilon: Rate = 0.001
    """What displacements are small against, for Adam and Yogi."""
    users: Users = "equal"
    """Whether clients count alike or by size."""
    batch_size: Size = 0
    """Examples a step; 0 is all of the client's."""

    def init_memory(self, task: Task, shared: Tree) -> Tree:
        moments = {f"m.{name}": torch.zeros_like(shared[name]) for name in task.body + task.head}
        if self.server == "momentum":
            return moments
        squares = {f"v.{name}": torch.full_like(shared[name], self.epsilon**2) for name in task.body + task.head}
        return {**moments, **squares}

    def plan(self, rnd: Round) -> Round:
        return rnd.announce(steps=self.tau)

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> tuple[Tree, Tree]:
        rates, over = [self.eta] * rnd.steps, task.body + task.head
        after, loss = local_sgd(task, {**shared, **personal}, data, rates, over, self.batch_size)
        return {**displacement(after, shared), "loss": loss}, pick(after, personal)

    def passes(self, size: int, rnd: Round) -> Passes:
        batch = min(self.batch_size, size) or size
        return Passes(batch, body_forwards=rnd.steps, body_backwards=rnd.steps, head_steps=rnd.steps)

    def weights(self, sizes: Tensor, rnd: Round) -> Tensor:
        return shares(self.users, sizes)

    def server_update(self, task: Task, shared: Tree, memory: Tree, update: Tree, rnd: Round) -> tuple[Tree, Tree]:
        step, kept = {}, {}
        for name in task.body + task.head:
            delta, m = update[name], memory[f"m.{name}"]
            if self.server == "momentum":
                step[name] = kept[f"m.{name}"] = self.beta1 * m + delta
                continue
            v, square = memory[f"v.{name}"], delta**2
            kept[f"m.{name}"] = m = self.beta1 * m + (1 - self.beta1) * delta
            growth = square - v if self.server == "adam" else square * (square - v).sign()
            kept[f"v.{name}"] = v = v + (1 - self.beta2) * growth
            step[name] = m / (v.sqrt() + self.epsilon)
        return server_move(task, shared, {**update, **step}, self.rho), kept

    def local_shared(self, shared: Tree, message: Tree) -> Tree:
        return shift(shared, message)

    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        rates, over = [self.eta] * steps, task.body + task.head
        after, _ = local_sgd(task, {**shared, **personal}, data, rates, over, self.batch_size)
        return after
