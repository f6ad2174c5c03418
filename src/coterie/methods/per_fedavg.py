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

With order "first" step 5 has no Hessian, and D'' is not used; with α = 0 it is FedAvg with equal clients and rate β.
Deviation: the Hessian-vector product is exact, by a second differentiation. The paper also offers a difference of
gradients. BatchNorm statistics move with D and D'.
"""

from typing import Literal

from coterie.core.fields import Count, LocalRate, Rate, Size, Users
from coterie.core.method import Data, Method, Passes, Reply, Round, Task, Tree, settings, sgd_passes
from coterie.core.steps import fine_tuned, local_gradient, minibatch
from coterie.core.tree import descend, displacement, pick


@settings
class PerFedAvg(Method):
    """FedAvg on each client's loss after one step of its own."""

    tau: Count = 10
    """Number of local steps."""
    alpha: Rate = 0.01
    """Learning rate of the step by which a client adapts the model."""
    beta: LocalRate = 0.05
    order: Literal["first", "hessian"] = "first"
    """Whether the adapting step is differentiated: "first" ignores it, "hessian" uses a Hessian-vector product."""
    users: Users = "equal"
    batch_size: Size = 0
    """Examples of each of the three minibatches of a step; 0 uses all examples of the client."""

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> Reply:
        after = {**shared, **personal}
        for step in range(rnd.steps):
            D, D1, D2 = (minibatch(data, self.batch_size, 3 * step + part) for part in range(3))
            w = pick(after, task.params)
            g, _, buffers = local_gradient(task, after, D, task.params)
            u = {**after, **buffers, **descend(w, g, self.alpha)}
            g, loss, buffers = local_gradient(task, u, D1, task.params)
            if self.order == "hessian":
                g = descend(g, task.hessian_product(after, D2, task.params, g), self.alpha)
            after = {**after, **buffers, **descend(w, g, self.beta)}
        return Reply(displacement(after, shared), {"loss": loss}, pick(after, personal))

    def passes(self, size: int, rnd: Round) -> Passes | None:
        if 0 < self.batch_size < size and size % self.batch_size:
            return None  # a short batch may be any of the three, which differ in cost
        products = rnd.steps if self.order == "hessian" else 0
        return sgd_passes(size, rnd.steps, self.batch_size, each=2)._replace(hessian_products=products)

    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        return fine_tuned(task, {**shared, **personal}, data, steps, self.alpha, self.batch_size)
