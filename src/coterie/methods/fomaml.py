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
from torch import Tensor

from coterie.core.method import Data, Length, Method, Passes, Rate, Round, Size, Task, Tree, settings
from coterie.core.steps import Users, fine_tuned, local_gradient, sgd_passes, shares, travelling, turns
from coterie.core.tree import descend, displacement, pick, shift


@settings
class FOMAML(Method):
    """A model that is good after a few local steps: its step goes along the last local gradient."""

    tau: Length = 3
    """Local gradients, the last of which is sent, or "2 epochs" of the client's examples."""
    eta: Rate = 0.007
    """Rate of all steps."""
    users: Users = "equal"
    """Whether clients count alike or by size."""
    batch_size: Size = 0
    """Examples a step; 0 is all of the client's."""

    def plan(self, rnd: Round) -> Round:
        return rnd.announce(steps=self.tau)

    def emphasis(self) -> float | None:
        return None if isinstance(self.tau, str) else (self.tau - 1) * self.eta

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> tuple[Tree, Tree]:
        there, over = {**shared, **personal}, task.body + task.head
        last = {**there, "loss": torch.zeros(())}
        for turn in turns(rnd.steps, data, self.batch_size):
            g, loss, buffers = local_gradient(task, there, turn.batch, over)
            last = turn.kept({**g, **buffers, "loss": loss}, last)
            there = turn.kept({**there, **descend(pick(there, over), g, self.eta), **buffers}, there)
        w = pick(shared, over)
        message = {**displacement(descend(w, last, self.eta), w), **travelling(task, shared, last)}
        return {**message, "loss": last["loss"]}, pick({**personal, **last}, personal)

    def passes(self, size: int, rnd: Round) -> Passes:
        return sgd_passes(size, rnd.steps, self.batch_size)

    def weights(self, sizes: Tensor, rnd: Round) -> Tensor:
        return shares(self.users, sizes)

    def server_update(self, task: Task, shared: Tree, memory: Tree, update: Tree, rnd: Round) -> tuple[Tree, Tree]:
        return shift(shared, update), memory

    def local_shared(self, shared: Tree, message: Tree) -> Tree:
        return shift(shared, message)

    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        return fine_tuned(task, {**shared, **personal}, data, steps, self.eta, self.batch_size)
