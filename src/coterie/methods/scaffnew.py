"""Scaffnew: local steps that control variates correct, and aggregation at random times. (ProxSkip, for averaging.)

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

from collections.abc import Mapping
from dataclasses import replace
from typing import Self, cast

from coterie.core.fields import BatchSize, Regularizer
from coterie.core.method import Calibrates, Client, Data, Receives, Reply, Round, Task, Tree, Update, settings
from coterie.core.steps import Pull, control, fine_tuned, local_sgd
from coterie.core.steps.convex import Bound, CoinChance, Step, best_p, theory
from coterie.core.tree import displacement, pick, shift


@settings
class Scaffnew(Calibrates, Receives):
    """One model for all clients: many local steps between aggregations, without drift."""

    gradients_per_step = 1
    users = "equal"

    gamma: Step | Bound = 0.1
    """Learning rate. "1/L", "1/trace" and "1/hessian" use the largest of the clients' L_i: the first two are from
    theory for linear models, the third estimates L_i at the initial model."""
    p: CoinChance = 0.2
    mu: Regularizer = 0.0
    batch_size: BatchSize = 0

    def init_personal(self, task: Task, client: Client) -> Tree:
        return {**task.personal_buffers(), **control.zero(task)}

    @property
    def is_calibrated(self) -> bool:
        return not (isinstance(self.gamma, str) or isinstance(self.p, str))

    def measure(self, task: Task, data: Data) -> dict[str, float]:
        return theory(task, data, self.mu, self.gamma, self.p)

    def calibrate(self, measured: Mapping[str, Mapping[str, float]]) -> Self:
        gamma = min(client["step"] for client in measured.values())
        p = best_p(gamma * client["mu"] for client in measured.values()) if self.p == "optimal" else self.p
        return replace(self, gamma=gamma, p=p)

    def plan(self, rnd: Round) -> Round:
        return rnd.announce(steps=control.steps_to_coin(cast(float, self.p), rnd))

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> Reply:
        gamma = cast(float, self.gamma)
        start, h = {**shared, **pick(personal, task.local_buffers)}, control.variate(task, personal)
        after, loss = local_sgd(task, start, data, rnd.steps, gamma, self.batch_size, pull=Pull(self.mu), control=h)
        return Reply(displacement(after, shared), {"loss": loss}, {**personal, **after})

    def server_update(self, task: Task, shared: Tree, memory: Tree, update: Update, rnd: Round) -> tuple[Tree, Tree]:
        return shift(shared, {name: update.tensors[name] / update.weight for name in shared}), memory

    def receive(self, task: Task, shared: Tree, personal: Tree, rnd: Round) -> Tree:
        return control.moved(task, personal, shared, cast(float, self.p) / cast(float, self.gamma))

    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        gamma, start = cast(float, self.gamma), {**shared, **personal}
        return {**personal, **fine_tuned(task, start, data, steps, gamma, self.batch_size, pull=Pull(self.mu))}
