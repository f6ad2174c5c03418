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

Steps 3 and 4 may each have momentum that starts from rest: v ← m v + ∇, and v instead of ∇.
With a schedule `decay`, the steps k = 0, .., b−1 of 4 have the rates β β_k, as in FedDecay. Heads, which are not
averaged, keep the rate β.
Deviation: the paper's average in step 2 is unweighted. The weights by size are those of the PFLEGO paper's comparison.
Deviation: θ does not move in step 3, so its features are computed once: 1 + b passes through the body instead of τ.
(With dropout in the body, step 3 sees one mask. For BatchNorm statistics it counts as one pass.)
"""

from torch import Tensor

from coterie.core.fields import Count, Decay, LocalRate, Share
from coterie.core.method import AdaptsHead, Client, Data, Passes, Reply, Round, Task, Tree, settings
from coterie.core.steps import head_descent, local_rates, local_sgd
from coterie.core.tree import displacement, pick
from coterie.errors import UserError


@settings
class FedRep(AdaptsHead):
    """Shared body, personal heads: local steps on the head, then on the body, then the average of the bodies."""

    labels = "local"

    tau: Count = 50
    """Number of local steps: tau - body_steps on the head, then body_steps on the body."""
    body_steps: Count = 5
    """b: number of local steps on the body."""
    beta: LocalRate = 0.007
    momentum: Share = 0.0
    """m: momentum of the local steps. The tables of the PFLEGO paper use 0.999."""
    decay: Decay = "none"
    """Schedule of the rate of the body steps within a round, such as "cosine 0.1"; "none" keeps it the same."""

    def init_shared(self, task: Task) -> Tree:
        return task.shared_body()

    def init_personal(self, task: Task, client: Client) -> Tree:
        return {**task.new_head(client.num_outputs, client.seed), **task.personal_buffers()}

    def plan(self, rnd: Round) -> Round:
        if self.body_steps > self.tau:
            raise UserError(
                f"method.body_steps = {self.body_steps} must not be larger than method.tau = {self.tau}, the number of "
                "local steps in total"
            )
        return super().plan(rnd)

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> Reply:
        features, _, buffers = task.body_vjp({**shared, **personal}, data.x)
        W = self.adapt_head(task, shared, personal, features, data, rnd.steps - self.body_steps)
        start, momentum = {**shared, **personal, **buffers, **W}, self.momentum
        rates = local_rates(task, self.beta, self.decay, data, rnd.announce(steps=self.body_steps))
        after, loss = local_sgd(task, start, data, self.body_steps, rates, over=task.body, momentum=momentum)
        return Reply(displacement(after, shared), {"loss": loss}, pick(after, personal))

    def passes(self, size: int, rnd: Round) -> Passes:
        b = self.body_steps
        return Passes(size, body_forwards=1 + b, body_backwards=b, head_steps=rnd.steps - b, frozen_head=b)

    def adapt_head(self, task: Task, shared: Tree, personal: Tree, features: Tensor, data: Data, steps: int) -> Tree:
        """Do step 3. New clients of the paper's experiments do nothing else."""
        return head_descent(task, pick(personal, task.head), features, data, steps, self.beta, self.momentum)
