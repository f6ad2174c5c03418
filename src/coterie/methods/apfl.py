"""APFL: adaptive personalized federated learning, with mixtures of a local and a shared model.

Y. Deng, M. M. Kamani, M. Mahdavi, "Adaptive Personalized Federated Learning", arXiv:2003.13461, Algorithm 1 and
equation 10.

    Server, round t:
    1.  draw a cohort; send it the model w
    2.  w ← the mean of the w_i over the cohort

    Client i, with its own model v_i (at first the initial one) and its mixing weight α_i:
    3.  w_i ← w;  τ times, on the next minibatch, with v̄_i = α_i v_i + (1 − α_i) w_i:
    4.    w_i ← w_i − η ∇ ℓ_i(w_i)
    5.    v_i ← v_i − η α_i ∇ ℓ_i(v̄_i), which is the gradient over v_i
    6.    in the first of these steps:  α_i ← α_i − η ⟨v_i − w_i, ∇ ℓ_i(v̄_i)⟩, limited to [0, 1]             (10)
    7.  send w_i − w; keep v_i and α_i

All gradients of a step are taken before anything moves. The client's model is v̄_i with the newest w. Before its first
visit v_i is of no use, and the client uses w. With α_i = 0 fixed, this is FedAvg with equal clients.
Deviation: v̄_i has BatchNorm statistics of its own, which stay with the client. To adapt, a client repeats step 5 with w
and α_i fixed; a new user starts with v_i = w.
"""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from coterie.core.fields import BatchSize, LocalRate, LocalSteps, Users
from coterie.core.method import Client, Data, Method, Reply, Round, Task, Tree, settings
from coterie.core.steps import local_gradient, turns
from coterie.core.tree import descend, displacement, pick, under, within


@settings
class APFL(Method):
    """Each client mixes a model of its own with the shared model, in proportions that it learns."""

    gradients_per_step = 2

    tau: LocalSteps = 10
    eta: LocalRate = 0.1
    alpha: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Initial mixing weight of the client's own model."""
    adaptive: bool = True
    """Whether clients learn their mixing weights, one step per round."""
    users: Users = "equal"
    batch_size: BatchSize = 0

    def init_personal(self, task: Task, client: Client) -> Tree:
        v = pick(task.initial, task.params)
        alpha = v[task.params[0]].new_tensor(self.alpha)
        return _personal(pick(task.initial, task.buffers), v, alpha, visited=task.flag())

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> Reply:
        w = {**pick(personal, task.local_buffers), **shared}
        own, v, alpha = pick(personal, task.buffers), within("v", personal), personal[".alpha"]
        last = torch.zeros(())
        for turn in turns(rnd.steps, data, self.batch_size):
            g_w, _, w_buffers = local_gradient(task, w, turn.batch, task.params)
            g, loss, buffers = local_gradient(task, {**own, **_mixed(alpha, v, w)}, turn.batch, task.params)
            slope = torch.stack([((v[name] - w[name]) * each).sum() for name, each in g.items()]).sum()
            w = turn.kept({**w, **descend(pick(w, task.params), g_w, self.eta), **w_buffers}, w)
            v, own = turn.kept(descend(v, g, self.eta * alpha), v), turn.kept(buffers, own)
            if self.adaptive and turn.step == 0:
                alpha = (alpha - self.eta * slope).clamp(0, 1)
            last = turn.kept_value(loss, last)
        visited = torch.ones_like(personal[".visited"])
        return Reply(displacement(w, shared), {"loss": last}, _personal(own, v, alpha, visited))

    def personal_params(self, task: Task, shared: Tree, personal: Tree) -> Tree:
        visited, mixed = personal[".visited"], _mixed(personal[".alpha"], within("v", personal), shared)
        own = {**pick(personal, task.buffers), **mixed}
        return {name: torch.where(visited, value, shared.get(name, value)) for name, value in own.items()}

    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        visited, alpha = personal[".visited"], personal[".alpha"]
        v = {name: torch.where(visited, value, shared[name]) for name, value in within("v", personal).items()}
        own = pick(self.personal_params(task, shared, personal), task.buffers)
        for turn in turns(steps, data, self.batch_size):
            g, _, buffers = local_gradient(task, {**own, **_mixed(alpha, v, shared)}, turn.batch, task.params)
            v, own = turn.kept(descend(v, g, self.eta * alpha), v), turn.kept(buffers, own)
        return _personal(own, v, alpha, torch.ones_like(visited))


def _mixed(alpha: Tensor, v: Tree, w: Tree) -> Tree:
    """Return the parameters of v̄_i."""
    return {name: alpha * value + (1 - alpha) * w[name] for name, value in v.items()}


def _personal(buffers: Tree, v: Tree, alpha: Tensor, visited: Tensor) -> Tree:
    return {**buffers, **under("v", v), ".alpha": alpha, ".visited": visited}
