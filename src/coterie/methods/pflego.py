"""PFLEGO: personalized federated learning with exact gradient-based optimization.

S. Nikoloutsopoulos, I. Koutsopoulos, M. K. Titsias, "Personalized Federated Learning with Exact Stochastic Gradient
Descent", arXiv:2202.09848, Algorithm 1. The objective (1) is L(θ, W_1..W_I) = Σ_i α_i ℓ_i(W_i, θ), α_i = N_i / N.

    Server, round t:
    1.  draw a cohort, each client with probability r/I; send it θ
    2.  θ ← θ − ρ (I/r) Σ_i α_i g_i                                  (4), or Adam on that gradient

    Client i, with its own head W_i (drawn at its first visit):
    3.  τ−1 times:  W_i ← W_i − β ∇_W ℓ_i(W_i, θ)
    4.  once more, the joint gradient (∇_W ℓ_i, g_i = ∇_θ ℓ_i) at the same point
    5.  W_i ← W_i − ρ (I/r) ∇_W ℓ_i                                   (3)
    6.  send g_i

Steps 4 to 6 and 2 together are one step of stochastic gradient descent on all parameters.
Deviation: the paper passes the body forward twice, for 3 and for 4. θ does not move between, so the features are
computed once and kept, and the backward pass of 4 starts from them: one pass each way, whatever τ is. (With dropout in
the body, 3 and 4 so see the same mask.)
"""

from typing import ClassVar, Literal

from torch import Tensor
from torch.func import grad_and_value

from coterie.method import Client, Count, Data, Labels, Method, Passes, Rate, Round, Task, Tree, settings
from coterie.steps import adam, adam_memory, head_descent
from coterie.tree import descend, displacement, pick, shift


@settings
class PFLEGO(Method):
    """Shared body, personal heads: head steps on fixed features, then one exact SGD step on everything."""

    labels: ClassVar[Labels] = "local"
    fixed_body: ClassVar[bool] = True

    tau: Count = 50
    """Local steps: tau-1 on the head, then the joint one."""
    beta: Rate = 0.006
    """Rate of the first tau-1 head steps."""
    rho: Rate = 0.002
    """Rate of the joint step, at the server and on the head."""
    server: Literal["sgd", "adam"] = "adam"
    """What the server does with the aggregated gradient. The paper's theory is for sgd, its tables for adam."""
    head_step: Literal["algorithm1", "exact"] = "algorithm1"
    """Step 5 as in eq. (3), or "exact": multiplied by alpha_i as in eq. (5), which is what Proposition 1 is about."""

    def init_shared(self, task: Task) -> Tree:
        return task.shared_body()

    def init_memory(self, task: Task, shared: Tree) -> Tree:
        return adam_memory(pick(shared, task.body)) if self.server == "adam" else {}

    def init_personal(self, task: Task, client: Client) -> Tree:
        return {**task.new_head(client.num_outputs, client.seed), **task.personal_buffers()}

    def plan(self, rnd: Round) -> Round:
        return rnd.announce(steps=self.tau)

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> tuple[Tree, Tree]:
        features, pull_back, buffers = task.body_vjp({**shared, **personal}, data.x)
        g_features, message, W = self.on_features(task, personal, features, data, rnd)
        (g,) = pull_back(g_features)
        travelling = displacement(buffers, pick(shared, [name for name in task.buffers if name in shared]))
        return {**g, **travelling, **message}, pick({**buffers, **W}, personal)

    def on_features(
        self, task: Task, personal: Tree, features: Tensor, data: Data, rnd: Round
    ) -> tuple[Tensor, Tree, Tree]:
        W = head_descent(task, pick(personal, task.head), features, data, rnd.steps - 1, self.beta)
        (g_W, g_features), loss = grad_and_value(task.head_loss, argnums=(0, 1))(W, features, data)
        alpha = data.mask.sum(dtype=loss.dtype) / rnd.num_examples if self.head_step == "exact" else 1.0
        W = descend(W, g_W, self.rho * rnd.num_clients / rnd.cohort_size * alpha)
        return g_features, {"loss": loss}, W

    def passes(self, size: int, rnd: Round) -> Passes:
        return Passes(batch=size, body_forwards=1, body_backwards=1, head_steps=rnd.steps)

    def weights(self, sizes: Tensor, rnd: Round) -> Tensor:
        alpha = sizes / rnd.num_examples
        return rnd.num_clients / rnd.cohort_size * alpha

    def server_update(self, task: Task, shared: Tree, memory: Tree, update: Tree, rnd: Round) -> tuple[Tree, Tree]:
        theta, buffers = pick(shared, task.body), [name for name in task.buffers if name in shared]
        if self.server == "adam":
            theta, memory = adam(theta, memory, update, self.rho)
        else:
            theta = descend(theta, update, self.rho)
        mean = {name: update[name] / update["weight"] for name in buffers}  # the weights need not sum to one
        return {**shift(pick(shared, buffers), mean), **theta}, memory

    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        features, _, buffers = task.body_vjp({**shared, **personal}, data.x)
        W = head_descent(task, pick(personal, task.head), features, data, steps, self.beta)
        return pick({**personal, **buffers, **W}, personal)
