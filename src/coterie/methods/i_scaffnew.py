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

from collections.abc import Mapping
from dataclasses import replace
from typing import Self, cast

from coterie.core.fields import BatchSize, Regularizer
from coterie.core.method import Calibrates, Client, Data, Prepares, Receives, Reply, Round, Task, Tree, Update, settings
from coterie.core.steps import Pull, control, fine_tuned, local_sgd, travelling
from coterie.core.steps.convex import CoinChance, StepSizes, theory
from coterie.core.tree import displacement, pick


@settings
class IScaffnew(Prepares, Calibrates, Receives):
    """One model for all clients: many local steps between aggregations, without drift, each client at its own rate."""

    gradients_per_step = 1
    users = "equal"

    gamma: StepSizes = 0.1
    p: CoinChance = 0.2
    mu: Regularizer = 0.0
    batch_size: BatchSize = 0

    def init_personal(self, task: Task, client: Client) -> Tree:
        return {**task.personal_buffers(), **control.zero(task), **control.steps_by_name(task, self.gamma, client)}

    def prepare(self, task: Task, personal: Tree, data: Data) -> Tree:
        return control.with_step(task, personal, data, self.mu, self.gamma, {**task.initial, **personal})

    @property
    def is_calibrated(self) -> bool:
        return self.p != "optimal"

    def measure(self, task: Task, data: Data) -> dict[str, float]:
        return theory(task, data, self.mu, self.gamma, self.p)

    def calibrate(self, measured: Mapping[str, Mapping[str, float]]) -> Self:
        return replace(self, p=control.optimal_p(self.gamma, measured))

    def plan(self, rnd: Round) -> Round:
        return rnd.announce(steps=control.steps_to_coin(cast(float, self.p), rnd))

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> Reply:
        gamma = personal[".gamma"]
        start, h = {**shared, **pick(personal, task.local_buffers)}, control.variate(task, personal)
        after, loss = local_sgd(task, start, data, rnd.steps, gamma, self.batch_size, pull=Pull(self.mu), control=h)
        moved = {name: 1 / gamma * value for name, value in displacement(after, pick(start, task.params)).items()}
        tensors = {**moved, **travelling(task, shared, after)}
        return Reply(tensors, {"inverse_step": 1 / gamma, "loss": loss}, {**personal, **after})

    def server_update(self, task: Task, shared: Tree, memory: Tree, update: Update, rnd: Round) -> tuple[Tree, Tree]:
        return control.weighted_move(task, shared, update, update.numbers["inverse_step"]), memory

    def receive(self, task: Task, shared: Tree, personal: Tree, rnd: Round) -> Tree:
        return control.moved(task, personal, shared, cast(float, self.p) / personal[".gamma"])

    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        gamma, start = personal[".gamma"], {**shared, **personal}
        return {**personal, **fine_tuned(task, start, data, steps, gamma, self.batch_size, pull=Pull(self.mu))}
