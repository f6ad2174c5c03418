"""Per-FedAvg: a model that is good after one gradient step of each client.

A. Fallah, A. Mokhtari, A. Ozdaglar, "Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic
Meta-Learning Approach", NeurIPS 2020, Algorithm 1. The objective is (1/I) Σ_i ℓ_i(w − α ∇ ℓ_i(w)).

    Server, round t:
    1.  draw a cohort; send it the model w
    2.  w ← the mean of the w_i over the cohort

    Client i:
    3.  w_i ← w;  τ times, with three minibatches D, D', D'':
    4.    u ← w_i − α ∇ ℓ_i(w_i; D)
    5.    w_i ← w_i − β (I − α ∇² ℓ_i(w_i; D'')) ∇ ℓ_i(u; D')
    6.  send w_i − w

Order "first" leaves the Hessian out of 5, and D'' unused; with α = 0 it is FedAvg with equal clients and rate β.
Deviation: the Hessian-vector product is exact, by a second differentiation, where the paper also has a difference of
gradients. BatchNorm statistics move with D and D'.
"""

from typing import Literal

from torch import Tensor

from coterie.core.method import Count, Data, Method, Passes, Rate, Round, Size, Task, Tree, settings
from coterie.core.steps import Users, fine_tuned, local_gradient, minibatch, sgd_passes, shares
from coterie.core.tree import descend, displacement, pick, shift


@settings
class PerFedAvg(Method):
    """FedAvg on what each client's loss is after one step of its own."""

    tau: Count = 10
    """Local steps."""
    alpha: Rate = 0.01
    """Rate of the step that a client makes to adapt the model to itself."""
    beta: Rate = 0.05
    """Rate of the local steps."""
    order: Literal["first", "hessian"] = "first"
    """Whether the adapting step is differentiated: not, or by a Hessian-vector product."""
    users: Users = "equal"
    """Whether clients count alike or by size."""
    batch_size: Size = 0
    """Examples of each of the three minibatches of a step; 0 is all of the client's."""

    def plan(self, rnd: Round) -> Round:
        return rnd.announce(steps=self.tau)

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> tuple[Tree, Tree]:
        after, over = {**shared, **personal}, task.body + task.head
        for step in range(rnd.steps):
            D, D1, D2 = (minibatch(data, self.batch_size, 3 * step + part) for part in range(3))
            w = pick(after, over)
            g, _, buffers = local_gradient(task, after, D, over)
            u = {**after, **buffers, **descend(w, g, self.alpha)}
            g, loss, buffers = local_gradient(task, u, D1, over)
            if self.order == "hessian":
                g = descend(g, task.hessian_product(after, D2, over, g), self.alpha)
            after = {**after, **buffers, **descend(w, g, self.beta)}
        return {**displacement(after, shared), "loss": loss}, pick(after, personal)

    def passes(self, size: int, rnd: Round) -> Passes:
        products = rnd.steps if self.order == "hessian" else 0
        return sgd_passes(size, rnd.steps, self.batch_size, each=2)._replace(hessian_products=products)

    def weights(self, sizes: Tensor, rnd: Round) -> Tensor:
        return shares(self.users, sizes)

    def server_update(self, task: Task, shared: Tree, memory: Tree, update: Tree, rnd: Round) -> tuple[Tree, Tree]:
        return shift(shared, update), memory

    def local_shared(self, shared: Tree, message: Tree) -> Tree:
        return shift(shared, message)

    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        return fine_tuned(task, {**shared, **personal}, data, steps, self.alpha, self.batch_size)
