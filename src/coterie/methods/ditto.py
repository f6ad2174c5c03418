"""Ditto: a global model, and personal ones that stay near it.

T. Li, S. Hu, A. Beirami, V. Smith, "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021,
Algorithm 1, with FedAvg as the solver of the global problem.

    Server, round t:
    1.  draw a cohort; send it the model w
    2.  w ← Σ_i (N_i / Σ_j N_j) w_i, the sums over the cohort

    Client i, with its own model v_i (at first the initial one):
    3.  w_i ← w;  τ times:  w_i ← w_i − η ∇ ℓ_i(w_i) on the next minibatch
    4.  τ times:  v_i ← v_i − β (∇ ℓ_i(v_i) + λ (v_i − w)) on the same minibatches
    5.  send w_i − w; keep v_i, which is the model that is used

With λ = 0 the personal models are trained by each client alone. (The authors of PFLEGO start v_i from w at the client's
first visit.)
A client that was never visited has v_i at the initial model, which is of no use: before its first visit it uses w, and
adapts from there.
"""

import torch
from torch import Tensor

from coterie.core.method import Client, Data, Length, Method, Passes, Rate, Round, Size, Task, Tree, settings
from coterie.core.steps import Pull, local_sgd, sgd_passes
from coterie.core.tree import displacement, shift


@settings
class Ditto(Method):
    """FedAvg, and beside it a personal model for each client, pulled towards the shared one."""

    tau: Length = 50
    """Local steps on each of the two models, or "2 epochs" of the client's examples."""
    eta: Rate = 0.007
    """Rate of the steps on the shared model."""
    beta: Rate = 0.007
    """Rate of the steps on the personal model."""
    lam: Rate = 0.25
    """λ: how strongly the personal model is pulled towards the shared one."""
    batch_size: Size = 0
    """Examples a step; 0 is all of the client's."""

    def init_personal(self, task: Task, client: Client) -> Tree:
        return {**task.initial, "visited": torch.zeros((), dtype=torch.bool)}

    def plan(self, rnd: Round) -> Round:
        return rnd.announce(steps=self.tau)

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> tuple[Tree, Tree]:
        w, _ = local_sgd(task, {**personal, **shared}, data, rnd.steps, self.eta, self.batch_size)
        v, loss = self._personal(task, shared, personal, data, rnd.steps)
        return {**displacement(w, shared), "loss": loss}, {**v, "visited": torch.ones_like(personal["visited"])}

    def _personal(self, task: Task, shared: Tree, start: Tree, data: Data, steps: int) -> tuple[Tree, Tensor]:
        """Step 4."""
        return local_sgd(task, start, data, steps, self.beta, self.batch_size, pull=Pull(self.lam, shared))

    def passes(self, size: int, rnd: Round) -> Passes:
        return sgd_passes(size, rnd.steps, self.batch_size, each=2)

    def weights(self, sizes: Tensor, rnd: Round) -> Tensor:
        return sizes / sizes.sum()

    def server_update(self, task: Task, shared: Tree, memory: Tree, update: Tree, rnd: Round) -> tuple[Tree, Tree]:
        return shift(shared, update), memory

    def personal_params(self, task: Task, shared: Tree, personal: Tree) -> Tree:
        return {**personal, **{name: torch.where(personal["visited"], personal[name], w) for name, w in shared.items()}}

    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        after, _ = self._personal(task, shared, self.personal_params(task, shared, personal), data, steps)
        return {**after, "visited": torch.ones_like(personal["visited"])}
