"""GD: gradient descent, a step a round.

The baseline of K. Yi, L. Condat, P. Richtárik, "Explicit Personalization and Local Training: Double Communication
Acceleration in Federated Learning", TMLR. The objective (ERM) is f(x) = (1/n) Σ_i f_i(x), f_i = ℓ_i + (μ/2) ||x||².

    Server, round t:
    1.  draw a cohort, or take everyone; send it the model x
    2.  x ← x − (γ/r) Σ_i g_i, the sum over the r clients of the cohort

    Client i:
    3.  send g_i = ∇ f_i(x)

All clients have the same weight, whatever their sizes. In theory γ = 1/L, where f is L-smooth: L is at most the mean of
the L_i.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Self, cast

from coterie.core.fields import Regularizer
from coterie.core.method import Calibrates, Data, Reply, Round, Task, Tree, Update, settings
from coterie.core.steps import Pull, fine_tuned, local_gradient, server_step, travelling
from coterie.core.steps.convex import Bound, Step, mean_step, theory
from coterie.core.tree import pick


@settings
class GD(Calibrates):
    """One model for all clients, and one gradient step per round."""

    sends = "gradient"
    gradients_per_step = 1
    users = "equal"

    gamma: Step | Bound = 0.1
    """Learning rate. "1/L", "1/trace" and "1/hessian" use the mean of the clients' L_i: the first two are from theory
    for linear models, the third estimates L_i at the initial model."""
    mu: Regularizer = 0.0

    @property
    def is_calibrated(self) -> bool:
        return not isinstance(self.gamma, str)

    def measure(self, task: Task, data: Data) -> dict[str, float]:
        return theory(task, data, self.mu, self.gamma)

    def calibrate(self, measured: Mapping[str, Mapping[str, float]]) -> Self:
        return replace(self, gamma=mean_step(measured))

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> Reply:
        g, loss, buffers = local_gradient(task, {**shared, **personal}, data, task.params, Pull(self.mu))
        return Reply({**g, **travelling(task, shared, buffers)}, {"loss": loss}, pick(buffers, personal))

    def server_update(self, task: Task, shared: Tree, memory: Tree, update: Update, rnd: Round) -> tuple[Tree, Tree]:
        return server_step(task, shared, memory, update, cast(float, self.gamma))

    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        rate = cast(float, self.gamma)
        return fine_tuned(task, {**shared, **personal}, data, steps, rate, pull=Pull(self.mu))
