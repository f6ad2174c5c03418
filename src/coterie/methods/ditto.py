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

With `towards = "trained"`, step 4 pulls towards w_i, the model that step 3 has trained, as the authors of PFLEGO
describe Ditto (section 2 of arXiv:2202.09848). With a schedule `decay`, the steps k = 0, 1, ... of 3 have the rates
η β_k, as in FedDecay. Personal models are not averaged, and keep the rate β.
With λ = 0 each client trains its personal model alone. (The authors of PFLEGO start v_i from w at the client's first
visit.) Before its first visit v_i is the initial model, which is of no use: until then the client uses w, and adapts
from there.
"""

from typing import Literal

import torch
from torch import Tensor

from coterie.core.fields import BatchSize, Clip, Decay, LocalSteps, Rate
from coterie.core.method import Client, Data, Method, Reply, Round, Task, Tree, settings
from coterie.core.steps import Pull, local_rates, local_sgd
from coterie.core.tree import displacement, pick


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
    towards: Literal["sent", "trained"] = "sent"
    """Model that step 4 pulls towards: w as it was "sent", or w_i as step 3 "trained" it."""
    batch_size: BatchSize = 0
    decay: Decay = "none"
    """Schedule of the rate eta within a round, such as "cosine 0.1"; "none" keeps it the same."""
    clip: Clip = 0.0

    def init_personal(self, task: Task, client: Client) -> Tree:
        return {**task.initial, ".visited": task.flag()}

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> Reply:
        rates, batch = local_rates(task, self.eta, self.decay, data, rnd, self.batch_size), self.batch_size
        w, _ = local_sgd(task, {**personal, **shared}, data, rnd.steps, rates, batch, clip=self.clip)
        v, loss = self._personal(task, self._centre(shared, w), personal, data, rnd.steps)
        return Reply(displacement(w, shared), {"loss": loss}, _visited(v))

    def _centre(self, shared: Tree, w: Tree) -> Tree:
        return shared if self.towards == "sent" else pick(w, shared)

    def _personal(self, task: Task, centre: Tree, start: Tree, data: Data, steps: int) -> tuple[Tree, Tensor]:
        """Do step 4."""
        pull = Pull(self.lam, centre)
        return local_sgd(task, start, data, steps, self.beta, self.batch_size, pull=pull, clip=self.clip)

    def personal_params(self, task: Task, shared: Tree, personal: Tree) -> Tree:
        visited = personal[".visited"]
        return {**personal, **{name: torch.where(visited, personal[name], w) for name, w in shared.items()}}

    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        start = self.personal_params(task, shared, personal)
        w = shared
        if self.towards == "trained":
            w, _ = local_sgd(task, {**personal, **shared}, data, steps, self.eta, self.batch_size)
        return _visited(self._personal(task, self._centre(shared, w), start, data, steps)[0])


def _visited(personal: Tree) -> Tree:
    return {**personal, ".visited": torch.ones_like(personal[".visited"])}
