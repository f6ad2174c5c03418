"""Scafflix: explicit mixtures, as in FLIX, trained with local steps and control variates, as in i-Scaffnew.

K. Yi, L. Condat, P. Richtárik, "Explicit Personalization and Local Training: Double Communication Acceleration in
Federated Learning", TMLR, Algorithm 1, for (FLIX): min (1/n) Σ_i f_i(α_i x + (1 − α_i) x_i*), f_i = ℓ_i + (μ/2) ||x||².

    Client i, once, before its first visit:
    1.  x_i* ← argmin f_i (unless α_i = 1), h_i ← 0, and γ_i

    Server, round t:
    2.  draw the number of steps until a coin shows heads, which it does with probability p; draw a cohort, or take
        everyone; send it the model x and that number
    3.  x ← Σ_i c_i x_i / Σ_i c_i, c_i = α_i²/γ_i, the sums over the cohort; send it x again

    Client i, whose model is x̃_i = α_i x_i + (1 − α_i) x_i*:
    4.  x_i ← x;  so many times:  x_i ← x_i − (γ_i/α_i) (∇ f_i(x̃_i) − h_i), on the next minibatch
    5.  send c_i (x_i − x) and c_i
    6.  once x is there:  h_i ← h_i + (p α_i/γ_i) (x − x_i)

A round is one aggregation: the paper's iterations between two of them are the steps of 4. Steps are done on x̃_i, which
moves by −γ_i (∇ f_i(x̃_i) − h_i): then 5 is (α_i/γ_i) (x̃_i − what it was), 6 adds (p/γ_i) (what x makes of x̃_i − x̃_i),
and nothing is divided by α_i. So α_i = 0 is a client at its own optimum, of which nobody learns anything.
By theory γ_i = 1/L_i and p = sqrt(min_i γ_i μ_i), for exact gradients of everyone (Theorem 4). Of a cohort, 6 leaves
Σ_i α_i h_i as it was, so that it stays 0 over all clients; the theorem is about everyone.
Deviation: minibatches are parts of a shuffle, fresh in each round; the paper's are drawn independently.
With α_i = 1 this is i-Scaffnew.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Literal, cast

import torch
from torch import Tensor

from coterie.core.method import Client, Data, Method, Passes, Rate, Round, Size, Task, Tree, settings
from coterie.core.steps import Pull, control, fine_tuned, local_sgd, sgd_passes, travelling
from coterie.core.steps.control import Mixing
from coterie.core.steps.convex import Bound, Chance, Search, Solver, Step, best_p, curvature, step_size
from coterie.core.tree import displacement, pick, shift


@settings
class Scafflix(Method):
    """Everyone's model is a mixture of a shared one with its own optimum; many local steps between aggregations."""

    alpha: Mixing | dict[str, Mixing] = 0.5
    """The share of the shared model in the client's; one for all, or one for each client by name."""
    gamma: Step | Bound = 0.1
    """Rate of the steps; "1/L" and "1/trace" are theory's for linear models, each client's own."""
    p: Chance | Literal["optimal"] = 0.2
    """Probability that a step is followed by an aggregation; "optimal" is theory's for linear models."""
    mu: Rate = 0.0
    """μ: l2 regularization of every parameter."""
    batch_size: Size = 0
    """Examples a step; 0 is all of the client's."""
    optimum_solver: Solver = "gd"
    """By what x_i* is found: gradient descent, or Newton's method, for convex problems."""
    optimum_rate: Step | Bound = 0.1
    """Rate of that descent."""
    optimum_tolerance: Rate = 1e-6
    """It ends where the norm of the gradient is not above this, unless it goes by minibatches."""
    optimum_epochs: Size = 50
    """Passes over the client's examples at the most; without minibatches each is a step."""
    optimum_batch: Size = 0
    """Examples a step of that descent; 0 is all of the client's."""
    optimum_start: float = 1.0
    """It starts from so many times the initial model."""

    def init_personal(self, task: Task, client: Client) -> Tree:
        return {**task.personal_buffers(), **control.zero(task), **control.mixing(task, self.alpha, client)}

    def settle(self, task: Task, personal: Tree, data: Data) -> Tree:
        how = Search(*(getattr(self, f"optimum_{name}") for name in Search._fields))
        gamma = personal["client.alpha"].new_tensor(step_size(self.gamma, task, data, self.mu))
        return {**control.with_optimum(task, personal, data, self.mu, how), "client.gamma": gamma}

    def tuned(self, task: Task, clients: Iterable[Data]) -> "Scafflix":
        if self.p != "optimal":
            return self
        each = [curvature(task, data, self.mu) for data in clients]
        return replace(self, p=best_p(client.step(self.gamma) * client.mu for client in each))

    def plan(self, rnd: Round) -> Round:
        return rnd.announce(steps=control.steps_to_coin(cast(float, self.p), rnd))

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> tuple[Tree, Tree]:
        alpha, gamma, over = personal["client.alpha"], personal["client.gamma"], task.body + task.head
        start, h = control.mixture(task, shared, control.at_rest(task, personal)), control.variate(task, personal)
        after, loss = local_sgd(task, start, data, rnd.steps, gamma, self.batch_size, pull=Pull(self.mu), control=h)
        moved = {name: alpha / gamma * value for name, value in displacement(after, pick(start, over)).items()}
        message = {**moved, **travelling(task, shared, after), "inverse_step": alpha**2 / gamma, "loss": loss}
        return message, {**personal, **after}

    def passes(self, size: int, rnd: Round) -> Passes:
        return sgd_passes(size, rnd.steps, self.batch_size)

    def weights(self, sizes: Tensor, rnd: Round) -> Tensor:
        return torch.ones_like(sizes) / len(sizes)

    def server_update(self, task: Task, shared: Tree, memory: Tree, update: Tree, rnd: Round) -> tuple[Tree, Tree]:
        c = update["inverse_step"].clamp(min=1e-30)  # where all have alpha 0, nothing over nothing is nothing
        totals = {name: update["weight"] if name in task.buffers else c for name in shared}
        return shift(shared, {name: update[name] / total for name, total in totals.items()}), memory

    def receive(self, task: Task, shared: Tree, personal: Tree, rnd: Round) -> Tree:
        now = control.mixture(task, shared, control.at_rest(task, personal))
        return control.moved(task, personal, now, cast(float, self.p) / personal["client.gamma"])

    def personal_params(self, task: Task, shared: Tree, personal: Tree) -> Tree:
        return control.mixture(task, shared, personal)

    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        gamma, start = personal["client.gamma"], control.mixture(task, shared, personal)
        return {**personal, **fine_tuned(task, start, data, steps, gamma, self.batch_size, pull=Pull(self.mu))}
