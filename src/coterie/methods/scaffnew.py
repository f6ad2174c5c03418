"""Scaffnew: local steps, set right by control variates, and aggregations by chance. (ProxSkip, for averaging.)

K. Mishchenko, G. Malinovsky, S. Stich, P. Richtárik, "ProxSkip: Yes! Local Gradient Steps Provably Lead to
Communication Acceleration! Finally!", ICML 2022, Algorithm 2. The objective (ERM) is (1/n) Σ_i f_i(x), with
f_i(x) = ℓ_i(x) + (μ/2) ||x||².

    Server, round t:
    1.  draw the number of steps until a coin shows heads, which it does with probability p; draw a cohort, or take
        everyone; send it the model x and that number
    2.  x ← (1/r) Σ_i x_i, the sum over the r clients of the cohort; send it x again

    Client i, with its control variate h_i (at first 0):
    3.  x_i ← x;  so many times:  x_i ← x_i − γ (∇ f_i(x_i) − h_i), on the next minibatch
    4.  send x_i − x
    5.  once x is there:  h_i ← h_i + (p/γ) (x − x_i)

A round is one aggregation. By theory γ = 1 / max_i L_i and p = sqrt(γ min_i μ_i), for exact gradients of everyone.
Of a cohort, 5 leaves Σ_i h_i as it was, so that it stays 0 over all clients; the theorem is about everyone.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Literal, cast

import torch
from torch import Tensor

from coterie.core.method import Client, Data, Method, Passes, Rate, Round, Size, Task, Tree, settings
from coterie.core.steps import Pull, control, fine_tuned, local_sgd, sgd_passes
from coterie.core.steps.convex import Bound, Chance, Step, best_p, curvature
from coterie.core.tree import displacement, pick, shift


@settings
class Scaffnew(Method):
    """One model for all: many local steps between aggregations, without drift."""

    gamma: Step | Bound = 0.1
    """Rate of the steps; "1/L" and "1/trace" are theory's for linear models, from the largest of the clients' L_i."""
    p: Chance | Literal["optimal"] = 0.2
    """Probability that a step is followed by an aggregation; "optimal" is theory's for linear models."""
    mu: Rate = 0.0
    """μ: l2 regularization of every parameter."""
    batch_size: Size = 0
    """Examples a step; 0 is all of the client's."""

    def init_personal(self, task: Task, client: Client) -> Tree:
        return {**task.personal_buffers(), **control.zero(task)}

    def tuned(self, task: Task, clients: Iterable[Data]) -> "Scaffnew":
        if not (isinstance(self.gamma, str) or isinstance(self.p, str)):
            return self
        each = [curvature(task, data, self.mu) for data in clients]
        gamma = min(client.step(self.gamma) for client in each)
        p = best_p(gamma * client.mu for client in each) if self.p == "optimal" else self.p
        return replace(self, gamma=gamma, p=p)

    def plan(self, rnd: Round) -> Round:
        return rnd.announce(steps=control.steps_to_coin(cast(float, self.p), rnd))

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> tuple[Tree, Tree]:
        gamma = cast(float, self.gamma)
        start, h = {**shared, **pick(personal, task.local_buffers)}, control.variate(task, personal)
        after, loss = local_sgd(task, start, data, rnd.steps, gamma, self.batch_size, pull=Pull(self.mu), control=h)
        return {**displacement(after, shared), "loss": loss}, {**personal, **after}

    def passes(self, size: int, rnd: Round) -> Passes:
        return sgd_passes(size, rnd.steps, self.batch_size)

    def weights(self, sizes: Tensor, rnd: Round) -> Tensor:
        return torch.ones_like(sizes) / len(sizes)

    def server_update(self, task: Task, shared: Tree, memory: Tree, update: Tree, rnd: Round) -> tuple[Tree, Tree]:
        return shift(shared, {name: update[name] / update["weight"] for name in shared}), memory

    def receive(self, task: Task, shared: Tree, personal: Tree, rnd: Round) -> Tree:
        return control.moved(task, personal, shared, cast(float, self.p) / cast(float, self.gamma))

    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        gamma, start = cast(float, self.gamma), {**shared, **personal}
        return {**personal, **fine_tuned(task, start, data, steps, gamma, self.batch_size, pull=Pull(self.mu))}
