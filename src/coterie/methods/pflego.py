"""PFLEGO: personalized federated learning with exact gradient-based optimization.

S. Nikoloutsopoulos, I. Koutsopoulos, M. K. Titsias, "Personalized Federated Learning with Exact Stochastic Gradient
Descent", arXiv:2202.09848, Algorithm 1. The objective (1) is L(θ, W_1..W_I) = Σ_i α_i ℓ_i(W_i, θ), α_i = N_i / N.

    Server, round t:
    1.  draw a cohort, each client with probability Pr(i) = r/I; send it θ
    2.  θ ← θ − ρ_t (I/r) Σ_i α_i g_i                                (4), or Adam on that gradient

    Client i, with its own head W_i (drawn at its first visit):
    3.  τ−1 times:  W_i ← W_i − β ∇_W ℓ_i(W_i, θ), or by another solver; undone if ℓ_i is then higher     (3.2.2)
    4.  once more, the joint gradient (∇_W ℓ_i, g_i = ∇_θ ℓ_i) at the same point
    5.  W_i ← W_i − ρ_t (I/r) ∇_W ℓ_i                                 (3)
    6.  send g_i

Steps 4 to 6 and 2 together are one step of stochastic gradient descent on all parameters. With `mu`, the ℓ_i of steps 3
to 5 has the penalty (μ/2) ‖W_i‖² on the head. If clients take part with unequal probabilities, 1/Pr(i) replaces I/r.
Deviation: the paper passes through the body for step 3 and again for step 4. θ does not move in between, so its
features are kept, and the backward pass of step 4 starts from them: one pass each way, whatever τ is. (Dropout in the
body then has one mask.) Every fiftieth round clients also send the smoothness L of ℓ_i over W_i, and whether the rates
of steps 3 and 5 satisfy Proposition 2 with it.
"""

from typing import Literal

import torch
from torch import Tensor

from coterie.core.fields import Count, Rate
from coterie.core.method import AdaptsHead, Client, Data, FixedBody, Passes, Round, Task, Tree, Update, settings
from coterie.core.steps import (
    SMOOTHNESS_PRODUCTS,
    adam_memory,
    gauge,
    gauged,
    head_descent,
    head_gradient,
    head_smoothness,
    penalized,
    penalized_loss,
    rate_notes,
    server_step,
)
from coterie.core.tree import descend, pick
from coterie.errors import UserError
from coterie.settings import LARGEST_RATE


@settings
class PFLEGO(FixedBody, AdaptsHead):
    """Shared body, personal heads: head steps on fixed features, then one exact SGD step on everything."""

    labels = "local"

    tau: Count = 50
    """Number of local steps: tau - 1 on the head, then the joint one."""
    beta: Rate | Literal["auto"] = 0.006
    """Learning rate of the first tau - 1 head steps. "auto" is 1/L_i, which each client computes itself."""
    rho: Rate = 0.002
    """Learning rate of the joint step, at the server and on the head."""
    rho_decay: Rate = 0.0
    """d of rho_t = rho / (1 + d (t - 1)), t = 1, 2, ...; 0 keeps the rate constant."""
    solver: Literal["gd", "momentum", "adam"] = "gd"
    """Solver of the first tau - 1 steps, at rate beta: gradient descent, the same with momentum 0.9, or Adam."""
    server: Literal["sgd", "adam"] = "adam"
    """Optimizer of the server. The paper's theory is for "sgd", its tables are for "adam"."""
    head_step: Literal["algorithm1", "exact"] = "algorithm1"
    """Step 5 as in eq. (3), or "exact": multiplied by alpha_i as in eq. (5), the subject of Proposition 1."""
    alpha: Literal["all", "cohort", "normalized"] = "all"
    """alpha_i = N_i over the examples of "all" clients, or of the "cohort" that answers, as in the authors' code.
    "normalized" also omits I/r in step 2, so that the weights of the cohort add up to one."""
    mu: Rate = 0.0
    """μ: L2 penalty of the heads in all their steps, for clients with too few examples for their head."""

    def init_shared(self, task: Task) -> Tree:
        return task.shared_body()

    def init_memory(self, task: Task, shared: Tree) -> Tree:
        return adam_memory(pick(shared, task.body)) if self.server == "adam" else {}

    def init_personal(self, task: Task, client: Client) -> Tree:
        return {**task.new_head(client.num_outputs, client.seed), **task.personal_buffers()}

    def plan(self, rnd: Round) -> Round:
        if self.alpha != "all" and self.head_step == "exact":
            raise UserError(
                f'method.head_step = "exact" needs alpha over all clients; omit method.alpha = "{self.alpha}"'
            )
        return super().plan(rnd)

    def weights(self, sizes: Tensor, rnd: Round) -> Tensor:
        alpha = sizes / (rnd.num_examples if self.alpha == "all" else sizes.sum())
        return alpha if self.alpha == "normalized" else rnd.importance * alpha

    def on_features(
        self, task: Task, personal: Tree, features: Tensor, data: Data, rnd: Round
    ) -> tuple[Tensor, Tree, Tree]:
        W, undone = self._head_steps(task, pick(personal, task.head), features, data, rnd.steps - 1)
        g_W, g_features, loss = head_gradient(task, W, features, data)
        alpha = data.mask.sum(dtype=loss.dtype) / rnd.num_examples if self.head_step == "exact" else 1.0
        joint = self._joint_rate(rnd) * alpha
        W = descend(W, penalized(g_W, W, self.mu), joint)
        beta = self.beta if self.solver == "gd" and self.beta != "auto" else 0.0
        bounds = gauge(task, W, features, data, rnd, self.mu, beta=beta, rho=joint)
        return g_features, {"loss": loss, "undone": undone, **bounds}, W

    def _head_steps(self, task: Task, W: Tree, features: Tensor, data: Data, steps: int) -> tuple[Tree, Tensor]:
        """Do step 3. Returns the head, and 1 if the steps were undone."""
        if not (steps and W):
            return W, features.new_zeros(())
        beta = 1 / head_smoothness(task, W, features, data, self.mu) if self.beta == "auto" else self.beta
        momentum = 0.9 if self.solver == "momentum" else 0.0
        adaptive = self.solver == "adam"
        moved = head_descent(task, W, features, data, steps, beta, momentum, adaptive=adaptive, mu=self.mu)
        before, after = (penalized_loss(task, head, features, data, self.mu) for head in (W, moved))
        lower = after <= before
        return {name: torch.where(lower, value, W[name]) for name, value in moved.items()}, 1 - lower.to(features.dtype)

    def _joint_rate(self, rnd: Round) -> float | Tensor:
        """Return ρ_t / Pr(i)."""
        if rnd.chance is not None:
            return self._rho(rnd) * rnd.importance
        return min(self._rho(rnd) * rnd.num_clients / rnd.cohort_size, LARGEST_RATE)

    def _rho(self, rnd: Round) -> float:
        return self.rho / (1 + self.rho_decay * (rnd.index - 1))

    def server_update(self, task: Task, shared: Tree, memory: Tree, update: Update, rnd: Round) -> tuple[Tree, Tree]:
        return server_step(task, shared, memory, update, self._rho(rnd))

    def adapt_head(self, task: Task, shared: Tree, personal: Tree, features: Tensor, data: Data, steps: int) -> Tree:
        return self._head_steps(task, pick(personal, task.head), features, data, steps)[0]

    def passes(self, size: int, rnd: Round) -> Passes:
        products = (gauged(rnd) + (self.beta == "auto" and rnd.steps > 1)) * SMOOTHNESS_PRODUCTS
        compared = 2 if rnd.steps > 1 else 0
        return Passes(size, 1, 1, rnd.steps, head_forwards=compared, feature_products=products)

    def notes(self, update: Update, rnd: Round) -> dict[str, float | str]:
        """Warn about head steps that were undone, and about rates above the bounds of Proposition 2."""
        bound, times = "(2/L)(r/I)", rnd.cohort_size / rnd.num_clients
        if rnd.chance is not None:
            bound, times = "(2/L) Pr(i)", float(rnd.chance.mean())
        if self.head_step == "exact":  # alpha_i is 1/I on average
            bound, times = f"{bound}/alpha_i", times * rnd.num_clients
        return {**rate_notes(update, beta=(self.beta, "2/L", 1.0), rho=(self._rho(rnd), bound, times))}
