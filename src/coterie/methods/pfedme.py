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

The paper's R is τ here, and its β is ρ. Before its first visit a client uses w. It adapts as in step 4, from w and with
w as the centre.
Deviation: in Algorithm 1, and in the authors' code, *all* clients do steps 3 to 5 in each round, and the server
averages the cohort only. Here clients outside the cohort do nothing, as in the other methods.
Deviation: the paper leaves open where step 4 starts. Buffers follow the passes of step 4, and are averaged whatever ρ
is.
"""

import torch
from torch import Tensor

from coterie.core.fields import Count, LocalSteps, Rate, Size, Users
from coterie.core.method import Client, Data, Method, Passes, Reply, Round, Task, Tree, Update, settings, sgd_passes
from coterie.core.steps import Pull, local_sgd, server_move, turns
from coterie.core.tree import displacement, pick


@settings
class PFedMe(Method):
    """Personal models near a shared one, which moves towards them."""

    tau: LocalSteps = 10
    inner: Count = 5
    """K: steps on the personal model for each local step on the shared one."""
    beta: Rate = 0.05
    """Learning rate of the steps on the personal model."""
    eta: Rate = 0.1
    """Learning rate of the steps on the shared model, which moves eta * lam of the way to the personal one."""
    lam: Rate = 5.0
    """λ: strength of the pull of the personal model towards the shared one."""
    rho: Rate = 1.0
    """Fraction of the mean displacement by which the server moves."""
    users: Users = "equal"
    batch_size: Size = 0
    """Examples per local step on the shared model; 0 uses all examples of the client."""

    def init_personal(self, task: Task, client: Client) -> Tree:
        return {**task.initial, ".visited": task.flag()}

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> Reply:
        w = pick({**personal, **shared}, task.initial)
        theta, last, towards = w, torch.zeros(()), self.eta * self.lam
        for turn in turns(rnd.steps, data, self.batch_size):
            near, loss = self._proximal(task, w, turn.batch, self.inner)
            stepped = {name: w[name] + towards * (near[name] - w[name]) for name in task.params}
            w, theta = turn.kept({**near, **stepped}, w), turn.kept(near, theta)
            last = turn.kept_value(loss, last)
        visited = torch.ones_like(personal[".visited"])
        return Reply(displacement(w, shared), {"loss": last}, {**theta, ".visited": visited})

    def _proximal(self, task: Task, w: Tree, batch: Data, steps: int) -> tuple[Tree, Tensor]:
        """Do step 4."""
        return local_sgd(task, w, batch, steps, self.beta, pull=Pull(self.lam, w))

    def passes(self, size: int, rnd: Round) -> Passes:
        return sgd_passes(size, rnd.steps, self.batch_size, each=self.inner)

    def server_update(self, task: Task, shared: Tree, memory: Tree, update: Update, rnd: Round) -> tuple[Tree, Tree]:
        return server_move(task, shared, update, self.rho), memory

    def personal_params(self, task: Task, shared: Tree, personal: Tree) -> Tree:
        visited = personal[".visited"]
        return {**personal, **{name: torch.where(visited, personal[name], w) for name, w in shared.items()}}

    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        theta, _ = self._proximal(task, pick({**personal, **shared}, task.initial), data, steps)
        return {**theta, ".visited": torch.ones_like(personal[".visited"])}
