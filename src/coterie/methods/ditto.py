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

With λ = 0 each client trains its personal model alone. (The authors of PFLEGO start v_i from w at the client's first
visit.) Before its first visit v_i is the initial model, which is of no use: until then the client uses w, and adapts
from there.
"""

import torch
from torch import Tensor

from coterie.core.fields import BatchSize, Clip, LocalSteps, Rate
from coterie.core.method import Client, Data, Method, Reply, Round, Task, Tree, settings
from coterie.core.steps import Pull, local_sgd
from coterie.core.tree import displacement


@settings
class Ditto(Method):
    """FedAvg, and next to it a personal model for each client, pulled towards the shared one."""

    gradients_per_step = 2

    tau: LocalSteps = 50
    eta: Rate = 0.007
    """Learning rate of the steps on the shared model."""
    beta: Rate = 0.007
    """Learning rate of the steps on the personal model."""
    lam: Rate = 0.25
    """λ: strength of the pull of the personal model towards the shared one."""
    batch_size: BatchSize = 0
    clip: Clip = 0.0

    def init_personal(self, task: Task, client: Client) -> Tree:
        return {**task.initial, ".visited": task.flag()}

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> Reply:
        w, _ = local_sgd(task, {**personal, **shared}, data, rnd.steps, self.eta, self.batch_size, clip=self.clip)
        v, loss = self._personal(task, shared, personal, data, rnd.steps)
        return Reply(displacement(w, shared), {"loss": loss}, _visited(v))

    def _personal(self, task: Task, shared: Tree, start: Tree, data: Data, steps: int) -> tuple[Tree, Tensor]:
        """Do step 4."""
        pull = Pull(self.lam, shared)
        return local_sgd(task, start, data, steps, self.beta, self.batch_size, pull=pull, clip=self.clip)

    def personal_params(self, task: Task, shared: Tree, personal: Tree) -> Tree:
        visited = personal[".visited"]
        return {**personal, **{name: torch.where(visited, personal[name], w) for name, w in shared.items()}}

    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        start = self.personal_params(task, shared, personal)
        return _visited(self._personal(task, shared, start, data, steps)[0])


def _visited(personal: Tree) -> Tree:
    return {**personal, ".visited": torch.ones_like(personal[".visited"])}
