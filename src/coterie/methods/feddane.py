"""FedDANE: local steps corrected by a gradient of other clients, with a proximal term.

T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith, "FedDANE: A Federated Newton-Type Method", Asilomar
2019, Algorithm 2.

    Rounds 1, 3, 5, ...:
    1.  draw a cohort; send it the model w
    2.  client i sends g_i = ∇ℓ_i(w)
    3.  g ← Σ_i (N_i / Σ_j N_j) g_i, the sums over the cohort

    Rounds 2, 4, 6, ...:
    4.  draw another cohort; send it w and g
    5.  w_i ← an inexact minimizer of ℓ_i(w_i) + ⟨g − ∇ℓ_i(w), w_i − w⟩ + (μ/2) ||w_i − w||²,
        found by τ gradient steps of rate η from w; client i sends w_i − w
    6.  w ← Σ_i (N_i / Σ_j N_j) w_i, the sums over the cohort

With one local step, and if all clients send a gradient, steps 1 to 6 are a step of gradient descent. With one client
they are a round of FedProx.
Deviation: the two cohorts of a round of the paper are those of two rounds, because a round has one cohort. w is the
same in both, so nothing else changes. A run needs twice as many rounds, and g travels in both of them although only the
second one uses it. If nobody takes part in an odd round, the even round uses the g of an earlier one.
Deviation: the paper draws clients with probability N_i / N and averages them plainly; here they are drawn uniformly and
weighted by size, as in FedAvg.
"""

import torch

from coterie.core.fields import BatchSize, Count, LocalRate, Rate
from coterie.core.method import Data, Method, Passes, Reply, Round, Task, Tree, Update, settings, sgd_passes
from coterie.core.steps import Pull, fine_tuned, local_gradient, local_sgd, travelling
from coterie.core.tree import displacement, pick, shift, under, within


@settings
class FedDANE(Method):
    """FedProx with local steps along a gradient of many clients, which another cohort sends in every other round."""

    tau: Count = 50
    """Number of local steps in an even round."""
    eta: LocalRate = 0.007
    mu: Rate = 0.25
    """Weight of the proximal term."""
    batch_size: BatchSize = 0

    def init_shared(self, task: Task) -> Tree:
        g = {name: torch.zeros_like(task.initial[name]) for name in task.params}
        return {**task.shared_model(), **under("g", g)}

    def plan(self, rnd: Round) -> Round:
        return rnd.announce(steps=1 if _gathers(rnd) else self.tau)

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> Reply:
        w, g = self.personal_params(task, shared, personal), within("g", shared)
        g_i, loss, buffers = local_gradient(task, w, data, task.params)
        if _gathers(rnd):
            tensors = {**under("g", displacement(g_i, g)), **travelling(task, shared, buffers)}
            return Reply(tensors, {"loss": loss}, pick({**personal, **buffers}, personal))
        control, pull = displacement(g_i, g), Pull(self.mu, pick(w, task.params))
        w_i, loss = local_sgd(task, w, data, rnd.steps, self.eta, self.batch_size, pull=pull, control=control)
        sent = pick(shared, task.shared_model())  # without g
        return Reply(displacement(w_i, sent), {"loss": loss}, pick(w_i, personal))

    def server_update(self, task: Task, shared: Tree, memory: Tree, update: Update, rnd: Round) -> tuple[Tree, Tree]:
        return shift(shared, update.tensors), memory  # w or g: what is not sent stays as it is

    def personal_params(self, task: Task, shared: Tree, personal: Tree) -> Tree:
        return pick({**shared, **personal}, task.initial)

    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        w = self.personal_params(task, shared, personal)
        return fine_tuned(task, w, data, steps, self.eta, self.batch_size, pull=Pull(self.mu, pick(w, task.params)))

    def passes(self, size: int, rnd: Round) -> Passes:
        if _gathers(rnd):
            return sgd_passes(size, 1)
        steps = sgd_passes(size, rnd.steps, self.batch_size)
        number = steps.body_forwards + 1
        return Passes((steps.body_forwards * steps.batch + size) / number, number, number, number)


def _gathers(rnd: Round) -> bool:
    """Return whether clients send gradients in this round."""
    return rnd.index % 2 == 1
