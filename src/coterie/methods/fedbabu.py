"""FedBABU: body aggregation, body update.

J. Oh, S. Kim, S.-Y. Yun, "FedBABU: Toward Enhanced Representation for Federated Image Classification", ICLR 2022,
Algorithm 1.

    Server, once:
    0.  draw one head W with orthonormal rows, for all clients and all rounds

    Server, round t:
    1.  draw a cohort; send it θ and W
    2.  θ ← Σ_i (N_i / Σ_j N_j) θ_i, the sums over the cohort

    Client i:
    3.  θ_i ← θ;  τ times:  v ← m v + ∇_θ ℓ_i(W, θ_i),  θ_i ← θ_i − β v      (v starts from 0)
    4.  send θ_i − θ

    Before use:
    5.  the client fine-tunes a head of its own, from W on, on the body as it is

Step 5 is `adapt_head`: it shows in the scores after adaptation, and the number of its steps is eval.adapt_steps.
A parametrized head (weight_norm) gets parameters for which the weight that it uses has orthonormal rows, if there are
such parameters. The bias of W stays as PyTorch draws it. It is never trained either.
"""

from torch import Tensor

from coterie.core.fields import Count, Rate, Share
from coterie.core.method import AdaptsHead, Data, Passes, Reply, Round, Task, Tree, Update, settings
from coterie.core.steps import head_descent, local_sgd
from coterie.core.tree import displacement, pick, shift
from coterie.errors import UserError


@settings
class FedBABU(AdaptsHead):
    """One orthogonal head that is never trained: local steps on the body, then the average of the bodies."""

    tau: Count = 50
    """Number of local steps on the body."""
    beta: Rate = 0.007
    """Learning rate of the local steps, and of fine-tuning."""
    momentum: Share = 0.9
    """m: momentum of the local steps, and of fine-tuning."""

    def init_shared(self, task: Task) -> Tree:
        if not task.head:
            raise UserError(
                "FedBABU needs a model with a head of its own, and this model has none, or has a frozen one: name the "
                "head with coterie.train(..., head=...), and leave freezing it to the method"
            )
        if not task.body:
            raise UserError(
                "FedBABU trains the body only, and this model has none: all of its parameters are in the head"
            )
        return {**task.shared_model(), **task.orthogonal_head()}

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> Reply:
        start, momentum = {**shared, **personal}, self.momentum
        after, loss = local_sgd(task, start, data, rnd.steps, self.beta, over=task.body, momentum=momentum)
        moving = {name: value for name, value in shared.items() if name not in task.head}
        return Reply(displacement(after, moving), {"loss": loss}, pick(after, personal))

    def server_update(self, task: Task, shared: Tree, memory: Tree, update: Update, rnd: Round) -> tuple[Tree, Tree]:
        return shift(shared, update.tensors), memory  # the head stays as it is

    def passes(self, size: int, rnd: Round) -> Passes:
        return Passes(size, rnd.steps, rnd.steps, head_steps=0, frozen_head=rnd.steps)

    def adapt_head(self, task: Task, shared: Tree, personal: Tree, features: Tensor, data: Data, steps: int) -> Tree:
        W = pick({**shared, **personal}, task.head)
        return head_descent(task, W, features, data, steps, self.beta, self.momentum)
