"""FedRep: head first, then the body.

L. Collins, H. Hassani, A. Mokhtari, S. Shakkottai, "Exploiting Shared Representations for Personalized Federated
Learning", ICML 2021, Algorithm 1.

    Server, round t:
    1.  draw a cohort; send it θ
    2.  θ ← Σ_i (N_i / Σ_j N_j) θ_i, the sums over the cohort

    Client i, with its own head W_i (drawn at its first visit):
    3.  τ − b times:  W_i ← W_i − β ∇_W ℓ_i(W_i, θ)
    4.  θ_i ← θ;  b times:  θ_i ← θ_i − β ∇_θ ℓ_i(W_i, θ_i)
    5.  send θ_i − θ; keep W_i

The steps of 3 and those of 4 may have momentum, each from rest: v ← m v + ∇, and v in the place of ∇.
Deviation: the paper averages plainly in 2; sizes are as in the comparison of the PFLEGO paper.
Deviation: θ does not move in 3, so the features are computed once and kept: 1 + b passes through the body instead of τ.
(With dropout in the body, 3 so sees one mask; BatchNorm statistics count 3 as one pass.)
"""

from typing import ClassVar

from torch import Tensor

from coterie.core.method import Client, Count, Data, Labels, Method, Passes, Rate, Round, Task, Tree, settings
from coterie.core.steps import head_descent, local_sgd
from coterie.core.tree import displacement, pick, shift
from coterie.errors import UserError
from coterie.settings import Share


@settings
class FedRep(Method):
    """Shared body, personal heads: local steps on the head, then on the body, then the average of the bodies."""

    labels: ClassVar[Labels] = "local"

    tau: Count = 50
    """Local steps: tau - body_steps on the head, then those on the body."""
    body_steps: Count = 5
    """b: local steps on the body."""
    beta: Rate = 0.007
    """Rate of the local steps."""
    momentum: Share = 0.0
    """m: of the local steps; the tables of the PFLEGO paper have 0.999."""

    def init_shared(self, task: Task) -> Tree:
        return task.shared_body()

    def init_personal(self, task: Task, client: Client) -> Tree:
        return {**task.new_head(client.num_outputs, client.seed), **task.personal_buffers()}

    def plan(self, rnd: Round) -> Round:
        if self.body_steps > self.tau:
            raise UserError(f"method.body_steps = {self.body_steps} are more than method.tau = {self.tau} steps in all")
        return rnd.announce(steps=self.tau)

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> tuple[Tree, Tree]:
        trained = self._head_trained(task, shared, personal, data, rnd.steps - self.body_steps)
        start, momentum = {**shared, **trained}, self.momentum
        after, loss = local_sgd(task, start, data, self.body_steps, self.beta, over=task.body, momentum=momentum)
        return {**displacement(after, shared), "loss": loss}, pick(after, personal)

    def _head_trained(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        """Step 3: the personal part, and all buffers as the pass through the body leaves them."""
        features, _, buffers = task.body_vjp({**shared, **personal}, data.x)
        W = head_descent(task, pick(personal, task.head), features, data, steps, self.beta, self.momentum)
        return {**personal, **buffers, **W}

    def passes(self, size: int, rnd: Round) -> Passes:
        b = self.body_steps
        return Passes(size, body_forwards=1 + b, body_backwards=b, head_steps=rnd.steps - b, frozen_head=b)

    def weights(self, sizes: Tensor, rnd: Round) -> Tensor:
        return sizes / sizes.sum()

    def server_update(self, task: Task, shared: Tree, memory: Tree, update: Tree, rnd: Round) -> tuple[Tree, Tree]:
        return shift(shared, update), memory

    def local_shared(self, shared: Tree, message: Tree) -> Tree:
        return shift(shared, message)

    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        """Step 3 alone, as the paper has it for new clients."""
        return pick(self._head_trained(task, shared, personal, data, steps), personal)
