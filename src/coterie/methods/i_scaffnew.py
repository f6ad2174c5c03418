"""i-Scaffnew: Scaffnew with a step size for each client.

K. Yi, L. Condat, P. Richtárik, "Explicit Personalization and Local Training: Double Communication Acceleration in
Federated Learning", TMLR, Algorithm 2. The objective (ERM) is (1/n) Σ_i f_i(x), f_i = ℓ_i + (μ/2) ||x||².

    Server, round t:
    1.  draw the number of steps until a coin shows heads, which it does with probability p; draw a cohort, or take
        everyone; send it the model x and that number
    2.  x ← Σ_i γ_i⁻¹ x_i / Σ_i γ_i⁻¹, the sums over the cohort; send it x again

    Client i, with its step size γ_i and its control variate h_i (at first 0):
    3.  x_i ← x;  so many times:  x_i ← x_i − γ_i (∇ f_i(x_i) − h_i), on the next minibatch
    4.  send γ_i⁻¹ (x_i − x) and γ_i⁻¹
    5.  once x is there:  h_i ← h_i + (p/γ_i) (x − x_i)

A round is one aggregation. By Theorem 7 γ_i = 1/L_i and p = sqrt(min_i γ_i μ_i), for exact gradients of everyone.
Of a cohort, 5 leaves Σ_i h_i as it was, so that it stays 0 over all clients; the theorem is about everyone.
With equal γ_i this is Scaffnew.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Literal, cast

import torch
from torch import Tensor

from coterie.core.method import Client, Data, Method, Passes, Rate, Round, Size, Task, Tree, settings
from coterie.core.steps import Pull, control, fine_tuned, local_sgd, sgd_passes, travelling
from coterie.core.steps.convex import Bound, Chance, Step, best_p, curvature, step_size
from coterie.core.tree import displacement, pick, shift


@settings
class IScaffnew(Method):
    """One model for all: many local steps between aggregations, without drift, each client at its own rate."""

    gamma: Step | Bound = 0.1
    """Rate of the steps; "1/L" and "1/trace" are theory's for linear models, each client's own."""
    p: Chance | Literal["optimal"] = 0.2
    """Probability that a step is followed by an aggregation; "optimal" is theory's for linear models."""
    mu: Rate = 0.0
    """μ: l2 regularization of every parameter."""
    batch_size: Size = 0
    """Examples a step; 0 is all of the client's."""

    def init_personal(self, task: Task, client: Client) -> Tree:
        return {**task.personal_buffers(), **control.zero(task)}

    def settle(self, task: Task, personal: Tree, data: Data) -> Tree:
        like = personal[f"h.{(task.body + task.head)[0]}"]
        return {**personal, "client.gamma": like.new_tensor(step_size(self.gamma, task, data, self.mu))}

    def tuned(self, task: Task, clients: Iterable[Data]) -> "IScaffnew":
        if self.p != "optimal":
            return self
        each = [curvature(task, data, self.mu) for data in clients]
        return replace(self, p=best_p(client.step(self.gamma) * client.mu for client in each))

    def plan(self, rnd: Round) -> Round:
        return rnd.announce(steps=control.steps_to_coin(cast(float, self.p), rnd))

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> tuple[Tree, Tree]:
        over, gamma = task.body + task.head, personal["client.gamma"]
        start, h = {**shared, **pick(personal, task.local_buffers)}, control.variate(task, personal)
        after, loss = local_sgd(task, start, data, rnd.steps, gamma, self.batch_size, pull=Pull(self.mu), control=h)
        moved = {name: 1 / gamma * value for name, value in displacement(after, pick(start, over)).items()}
        message = {**moved, **travelling(task, shared, after), "inverse_step": 1 / gamma, "loss": loss}
        return message, {**personal, **after}

    def passes(self, size: int, rnd: Round) -> Passes:
        return sgd_passes(size, rnd.steps, self.batch_size)

    def weights(self, sizes: Tensor, rnd: Round) -> Tensor:
        return torch.ones_like(sizes) / len(sizes)

    def server_update(self, task: Task, shared: Tree, memory: Tree, update: Tree, rnd: Round) -> tuple[Tree, Tree]:
        over = {name: "weight" if name in task.buffers else "inverse_step" for name in shared}
        return shift(shared, {name: update[name] / update[total] for name, total in over.items()}), memory

    def receive(self, task: Task, shared: Tree, personal: Tree, rnd: Round) -> Tree:
        return control.moved(task, personal, shared, cast(float, self.p) / personal["client.gamma"])

    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        gamma, start = personal["client.gamma"], {**shared, **personal}
        return {**personal, **fine_tuned(task, start, data, steps, gamma, self.batch_size, pull=Pull(self.mu))}
