"""FOMAML: first-order model-agnostic meta-learning, its tasks the clients.

C. Finn, P. Abbeel, S. Levine, "Model-Agnostic Meta-Learning for Fast Adaptation of Deep Networks", ICML 2017, in its
first-order form; among clients as in Y. Jiang, J. Konečný, K. Rush, S. Kannan, "Improving Federated Learning
Personalization via Model Agnostic Meta Learning", arXiv:1909.12488.

    Server, round t:
    1.  draw a cohort; send it the model w
    2.  w ← w − η (1/r) Σ_i g_i, the sum over the r clients of the cohort

    Client i:
    3.  w_i ← w;  τ−1 times:  w_i ← w_i − η ∇ ℓ_i(w_i) on the next minibatch
    4.  send −η g_i, where g_i = ∇ ℓ_i(w_i) on one more minibatch: the last gradient only, not the way there

With one step this is FedSGD.
Deviation: one rate η for the steps of 3 and for 2, as in the analysis of A. Nichol, J. Achiam, J. Schulman, "On
First-Order Meta-Learning Algorithms", arXiv:1803.02999. BatchNorm statistics move with the passes of 3 and 4.
"""

import torch

from coterie.core.fields import BatchSize, Length, LocalRate, Users
from coterie.core.method import Data, Method, Reply, Round, Task, Tree, Update, settings
from coterie.core.steps import fine_tuned, local_gradient, travelling, turns
from coterie.core.tree import descend, displacement, pick


@settings
class FOMAML(Method):
    """A model that is good after a few local steps: the server steps along the last local gradient."""

    gradients_per_step = 1

    tau: Length = 3
    """Number of local gradients, or "2 epochs" of the client's examples. The last gradient is sent."""
    eta: LocalRate = 0.007
    users: Users = "equal"
    batch_size: BatchSize = 0

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> Reply:
        there = {**shared, **personal}
        last, loss = there, torch.zeros(())
        for turn in turns(rnd.steps, data, self.batch_size):
            g, value, buffers = local_gradient(task, there, turn.batch, task.params)
            last = turn.kept({**g, **buffers}, last)
            loss = turn.kept_value(value, loss)
            there = turn.kept({**there, **descend(pick(there, task.params), g, self.eta), **buffers}, there)
        w = pick(shared, task.params)
        tensors = {**displacement(descend(w, last, self.eta), w), **travelling(task, shared, last)}
        return Reply(tensors, {"loss": loss}, pick({**personal, **last}, personal))

    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        return fine_tuned(task, {**shared, **personal}, data, steps, self.eta, self.batch_size)

    def notes(self, update: Update, rnd: Round) -> dict[str, float | str]:
        """Record how much FOMAML emphasizes fast personalization (Table 1 of the FedDecay paper)."""
        if rnd.index > 1 or isinstance(self.tau, str):
            return {}
        return {"emphasis": (self.tau - 1) * self.eta}
