"""SCAFFOLD: federated averaging with control variates against client drift.

S. P. Karimireddy, S. Kale, M. Mohri, S. Reddi, S. Stich, A. T. Suresh, "SCAFFOLD: Stochastic Controlled Averaging for
Federated Learning", ICML 2020, Algorithm 1, option II.

    Server, round t, with c = 0 at first:
    1.  draw a cohort; send it the model w and c
    2.  w ← w + ρ (1/r) Σ_i (w_i − w), the sum over the r clients of the cohort
    3.  c ← c + (r/I) (1/r) Σ_i (c_i⁺ − c_i)

    Client i, with its own c_i (at first 0):
    4.  w_i ← w;  τ times:  w_i ← w_i − η (∇ ℓ_i(w_i) − c_i + c) on the next minibatch
    5.  c_i⁺ ← c_i − c + (w − w_i) / (τ η)
    6.  send w_i − w and c_i⁺ − c_i; c_i ← c_i⁺

c travels with the model in both directions, under the parameters' names with "c." before them: twice the bytes. If all
clients take part, c is always the mean of the c_i, and one step at ρ = 1 is gradient descent. A client adapts the model
by plain steps.
Deviation: r in 3 is the expected size of the cohort.
"""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from coterie.core.method import Client, Data, Length, Method, Passes, Rate, Round, Size, Task, Tree, settings
from coterie.core.steps import fine_tuned, local_sgd, num_steps, server_move, sgd_passes, shares
from coterie.core.tree import displacement, pick, shift


@settings
class Scaffold(Method):
    """FedAvg whose local steps are corrected by how the client's gradients differ from everyone's."""

    tau: Length = 10
    """Local steps, or "2 epochs" of the client's examples."""
    eta: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.1
    """Rate of the local steps."""
    rho: Rate = 1.0
    """Rate of the server's step: the share of the mean displacement that it takes."""
    batch_size: Size = 0
    """Examples a step; 0 is all of the client's."""

    def init_shared(self, task: Task) -> Tree:
        return {**task.shared_model(), **_zeros("c", task)}

    def init_personal(self, task: Task, client: Client) -> Tree:
        return {**task.personal_buffers(), **_zeros("c_i", task)}

    def plan(self, rnd: Round) -> Round:
        return rnd.announce(steps=self.tau)

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> tuple[Tree, Tree]:
        over, w = task.body + task.head, self.personal_params(task, shared, personal)
        control = {name: personal[f"c_i.{name}"] - shared[f"c.{name}"] for name in over}
        after, loss = local_sgd(task, w, data, rnd.steps, self.eta, self.batch_size, control=control)
        tau = num_steps(rnd.steps, data, self.batch_size)
        way = self.eta * (tau if isinstance(tau, int) else tau.to(loss.dtype))
        c_i = {name: control[name] + (w[name] - after[name]) / way for name in over}
        moved = {f"c.{name}": value - personal[f"c_i.{name}"] for name, value in c_i.items()}
        kept = {**pick(after, task.local_buffers), **{f"c_i.{name}": value for name, value in c_i.items()}}
        travels = pick(shared, [name for name in shared if name in task.initial])
        return {**displacement(after, travels), **moved, "loss": loss}, kept

    def passes(self, size: int, rnd: Round) -> Passes:
        return sgd_passes(size, rnd.steps, self.batch_size)

    def weights(self, sizes: Tensor, rnd: Round) -> Tensor:
        return shares("equal", sizes)

    def server_update(self, task: Task, shared: Tree, memory: Tree, update: Tree, rnd: Round) -> tuple[Tree, Tree]:
        c, share = {name: shared[name] for name in _zeros("c", task)}, rnd.cohort_size / rnd.num_clients
        model = pick(shared, [name for name in shared if name not in c])
        moved = {name: value + share * update[name] for name, value in c.items()}
        return {**server_move(task, model, update, self.rho), **moved}, memory

    def local_shared(self, shared: Tree, message: Tree) -> Tree:
        return shift(shared, message)

    def personal_params(self, task: Task, shared: Tree, personal: Tree) -> Tree:
        return pick({**shared, **personal}, task.initial)

    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        w = self.personal_params(task, shared, personal)
        return {**personal, **fine_tuned(task, w, data, steps, self.eta, self.batch_size)}


def _zeros(label: str, task: Task) -> Tree:
    return {f"{label}.{name}": torch.zeros_like(task.initial[name]) for name in task.body + task.head}
