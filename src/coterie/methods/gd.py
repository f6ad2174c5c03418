"""GD: gradient descent, a step a round.

The baseline of K. Yi, L. Condat, P. Richtárik, "Explicit Personalization and Local Training: Double Communication
Acceleration in Federated Learning", TMLR. The objective (ERM) is f(x) = (1/n) Σ_i f_i(x), f_i = ℓ_i + (μ/2) ||x||².

    Server, round t:
    1.  draw a cohort, or take everyone; send it the model x
    2.  x ← x − (γ/r) Σ_i g_i, the sum over the r clients of the cohort

    Client i:
    3.  send g_i = ∇ f_i(x)

Clients count alike, whatever their sizes. By theory γ = 1/L, where f is L smooth: L is at most the mean of the L_i.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from coterie.core.method import Data, Method, Passes, Rate, Round, Task, Tree, settings
from coterie.core.steps import Pull, fine_tuned, local_gradient, server_step, sgd_passes, travelling
from coterie.core.steps.convex import Bound, Step, curvature


@settings
class GD(Method):
    """One model for all, one gradient step a round."""

    gamma: Step | Bound = 0.1
    """Rate of the step; "1/L" and "1/trace" are theory's for linear models, from the mean of the clients' L_i."""
    mu: Rate = 0.0
    """μ: l2 regularization of every parameter."""

    def tuned(self, task: Task, clients: Iterable[Data]) -> "GD":
        if not isinstance(self.gamma, str):
            return self
        inverse = [1 / curvature(task, data, self.mu).step(self.gamma) for data in clients]
        return replace(self, gamma=len(inverse) / sum(inverse))

    def plan(self, rnd: Round) -> Round:
        return rnd.announce(steps=1)

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> tuple[Tree, Tree]:
        over = task.body + task.head
        g, loss, buffers = local_gradient(task, {**shared, **personal}, data, over, Pull(self.mu))
        kept = {name: buffers[name] for name in personal}
        return {**g, **travelling(task, shared, buffers), "loss": loss}, kept

    def passes(self, size: int, rnd: Round) -> Passes:
        return sgd_passes(size, 1)

    def weights(self, sizes: Tensor, rnd: Round) -> Tensor:
        return torch.ones_like(sizes) / len(sizes)

    def server_update(self, task: Task, shared: Tree, memory: Tree, update: Tree, rnd: Round) -> tuple[Tree, Tree]:
        return server_step(task, shared, memory, update, cast(float, self.gamma))

    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        rate = cast(float, self.gamma)
        return fine_tuned(task, {**shared, **personal}, data, steps, rate, pull=Pull(self.mu))
