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

c travels with the model in both directions, which doubles the bytes. If all clients take part, c is always the mean of
the c_i, and one step with ρ = 1 is gradient descent. A client adapts the model by plain steps.
Deviation: r in step 3 is the expected size of the cohort.
"""

from typing import Annotated

import torch
from pydantic import Field

from coterie.core.fields import BatchSize, LocalSteps, Rate
from coterie.core.method import Client, Data, Method, Reply, Round, Task, Tree, Update, settings
from coterie.core.steps import fine_tuned, local_sgd, num_steps, server_move
from coterie.core.tree import displacement, pick, under, within


@settings
class Scaffold(Method):
    """FedAvg with local steps that are corrected by how the client's gradients differ from those of all clients."""

    gradients_per_step = 1
    users = "equal"

    tau: LocalSteps = 10
    eta: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.1
    """Learning rate of the local steps."""
    rho: Rate = 1.0
    """Fraction of the mean displacement by which the server moves."""
    batch_size: BatchSize = 0

    def init_shared(self, task: Task) -> Tree:
        return {**task.shared_model(), **under("c", _zeros(task))}

    def init_personal(self, task: Task, client: Client) -> Tree:
        return {**task.personal_buffers(), **under("c_i", _zeros(task))}

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> Reply:
        w = self.personal_params(task, shared, personal)
        c, own = within("c", shared), within("c_i", personal)
        control = {name: own[name] - c[name] for name in task.params}
        after, loss = local_sgd(task, w, data, rnd.steps, self.eta, self.batch_size, control=control)
        tau = num_steps(rnd.steps, data, self.batch_size)
        way = self.eta * (tau if isinstance(tau, int) else tau.to(loss.dtype))
        c_i = {name: control[name] + (w[name] - after[name]) / way for name in task.params}
        moved = {name: value - own[name] for name, value in c_i.items()}
        tensors = {**displacement(after, _model(task, shared)), **under("c", moved)}
        return Reply(tensors, {"loss": loss}, {**pick(after, task.local_buffers), **under("c_i", c_i)})

    def server_update(self, task: Task, shared: Tree, memory: Tree, update: Update, rnd: Round) -> tuple[Tree, Tree]:
        share, by = rnd.cohort_size / rnd.num_clients, within("c", update.tensors)
        c = {name: value + share * by[name] for name, value in within("c", shared).items()}
        return {**server_move(task, _model(task, shared), update, self.rho), **under("c", c)}, memory

    def personal_params(self, task: Task, shared: Tree, personal: Tree) -> Tree:
        return pick({**shared, **personal}, task.initial)

    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        w = self.personal_params(task, shared, personal)
        return {**personal, **fine_tuned(task, w, data, steps, self.eta, self.batch_size)}


def _zeros(task: Task) -> Tree:
    return {name: torch.zeros_like(task.initial[name]) for name in task.params}


def _model(task: Task, shared: Tree) -> Tree:
    """Return the shared model without c."""
    return pick(shared, [name for name in shared if name in task.initial])
