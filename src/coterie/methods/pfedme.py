"""pFedMe: personal models by Moreau envelopes.

C. T. Dinh, N. H. Tran, T. D. Nguyen, "Personalized Federated Learning with Moreau Envelopes", NeurIPS 2020,
Algorithm 1. The objective is (1/I) Σ_i F_i(w), where F_i(w) = min_θ ℓ_i(θ) + (λ/2) ||θ − w||².

    Server, round t:
    1.  draw a cohort; send it the model w
    2.  w ← (1 − ρ) w + ρ (1/r) Σ_i w_i, the sum over the r clients of the cohort

    Client i:
    3.  w_i ← w;  τ times, on the next minibatch:
    4.    θ_i ← an approximate minimizer of ℓ_i(θ) + (λ/2) ||θ − w_i||²: K gradient steps of rate β from w_i
    5.    w_i ← w_i − η λ (w_i − θ_i), where λ (w_i − θ_i) is ∇F_i(w_i) if 4 is exact
    6.  send w_i − w; keep θ_i, which is the model that is used

The paper's R is τ here, its β is ρ. Before its first visit a client uses w. It adapts as in 4, from and around w.
Deviation: the paper leaves open where 4 starts. Buffers go with the passes of 4, and are averaged whatever ρ is.
"""

import torch
from torch import Tensor

from coterie.core.method import Client, Count, Data, Length, Method, Passes, Rate, Round, Size, Task, Tree, settings
from coterie.core.steps import Pull, Users, local_sgd, server_move, sgd_passes, shares, turns
from coterie.core.tree import displacement, pick


@settings
class PFedMe(Method):
    """Personal models near a shared one, which moves towards them."""

    tau: Length = 10
    """Local rounds: steps on the shared model, or "2 epochs" of the client's examples."""
    inner: Count = 5
    """K: steps on the personal model for each of these."""
    beta: Rate = 0.05
    """Rate of the steps on the personal model."""
    eta: Rate = 0.1
    """Rate of the steps on the shared model; with lam, eta * lam is how far it goes towards the personal one."""
    lam: Rate = 5.0
    """λ: how strongly the personal model is pulled towards the shared one."""
    rho: Rate = 1.0
    """Rate of the server's step: the share of the mean displacement that it takes."""
    users: Users = "equal"
    """Whether clients count alike or by size."""
    batch_size: Size = 0
    """Examples of a local round; 0 is all of the client's."""

    def init_personal(self, task: Task, client: Client) -> Tree:
        return {**task.initial, "visited": torch.zeros((), dtype=torch.bool)}

    def plan(self, rnd: Round) -> Round:
        return rnd.announce(steps=self.tau)

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> tuple[Tree, Tree]:
        w = pick({**personal, **shared}, task.initial)
        theta, towards = {**w, "loss": torch.zeros(())}, self.eta * self.lam
        for turn in turns(rnd.steps, data, self.batch_size):
            near, loss = self._proximal(task, w, turn.batch, self.inner)
            stepped = {name: w[name] + towards * (near[name] - w[name]) for name in task.body + task.head}
            w, theta = turn.kept({**near, **stepped}, w), turn.kept({**near, "loss": loss}, theta)
        loss = theta.pop("loss")
        return {**displacement(w, shared), "loss": loss}, {**theta, "visited": torch.ones_like(personal["visited"])}

    def _proximal(self, task: Task, w: Tree, batch: Data, steps: int) -> tuple[Tree, Tensor]:
        """Step 4."""
        return local_sgd(task, w, batch, steps, self.beta, pull=Pull(self.lam, w))

    def passes(self, size: int, rnd: Round) -> Passes:
        return sgd_passes(size, rnd.steps, self.batch_size, each=self.inner)

    def weights(self, sizes: Tensor, rnd: Round) -> Tensor:
        return shares(self.users, sizes)

    def server_update(self, task: Task, shared: Tree, memory: Tree, update: Tree, rnd: Round) -> tuple[Tree, Tree]:
        return server_move(task, shared, update, self.rho), memory

    def personal_params(self, task: Task, shared: Tree, personal: Tree) -> Tree:
        return {**personal, **{name: torch.where(personal["visited"], personal[name], w) for name, w in shared.items()}}

    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        theta, _ = self._proximal(task, pick({**personal, **shared}, task.initial), data, steps)
        return {**theta, "visited": torch.ones_like(personal["visited"])}
