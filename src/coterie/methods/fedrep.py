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
With `unit = "epochs"`, steps 3 and 4 are passes over minibatches, both in the order of the same shuffles.
"""

from typing import Literal

from torch import Tensor

from coterie.core.fields import BatchSize, Clip, Count, Decay, LocalRate, Share
from coterie.core.method import AdaptsHead, Client, Data, Passes, Reply, Round, Task, Tree, settings, sgd_passes
from coterie.core.steps import head_descent, local_rates, local_sgd
from coterie.core.tree import displacement, pick
from coterie.errors import UserError
from coterie.settings import Epochs


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
    unit: Literal["steps", "epochs"] = "steps"
    """What tau and body_steps count: local steps, or passes over the client's examples in batches of batch_size."""
    batch_size: BatchSize = 0
    clip: Clip = 0.0

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
        return rnd.announce(steps=self._counted(self.tau))

    def _counted(self, count: int) -> int:
        return Epochs(count) if self.unit == "epochs" else count

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> Reply:
        features, _, buffers = task.body_vjp({**shared, **personal}, data.x)
        head_steps, body_steps = self._counted(rnd.steps - self.body_steps), self._counted(self.body_steps)
        W = self.adapt_head(task, shared, personal, features, data, head_steps)
        rates = local_rates(task, self.beta, self.decay, data, rnd.announce(steps=body_steps), self.batch_size)
        after, loss = local_sgd(
            task,
            {**shared, **personal, **buffers, **W},
            data,
            body_steps,
            rates,
            self.batch_size,
            over=task.body,
            momentum=self.momentum,
            clip=self.clip,
        )
        return Reply(displacement(after, shared), {"loss": loss}, pick(after, personal))

    def passes(self, size: int, rnd: Round) -> Passes | None:
        if self.batch_size and self.unit == "steps":
            return None
        batch, epoch = sgd_passes(size, Epochs(1), self.batch_size)[:2]
        b, head_steps = self.body_steps * epoch, (rnd.steps - self.body_steps) * epoch
        return Passes(batch, body_forwards=epoch + b, body_backwards=b, head_steps=head_steps, frozen_head=b)

    def adapt_head(self, task: Task, shared: Tree, personal: Tree, features: Tensor, data: Data, steps: int) -> Tree:
        """Do step 3. New clients of the paper's experiments do nothing else."""
        W, batch, clip = pick(personal, task.head), self.batch_size, self.clip
        return head_descent(task, W, features, data, steps, self.beta, self.momentum, batch=batch, clip=clip)
