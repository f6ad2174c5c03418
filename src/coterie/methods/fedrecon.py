"""FedRecon: heads that are rebuilt when they are needed.

K. Singhal, H. Sidahmed, Z. Garrett, S. Wu, J. Rush, S. Prakash, "Federated Reconstruction: Partially Local Federated
Learning", NeurIPS 2021, Algorithm 1, with gradient descent as its reconstruction and one step on the body.

    Server, round t:
    1.  draw a cohort; send it θ
    2.  θ ← θ − ρ Σ_i (N_i / Σ_j N_j) g_i, the sums over the cohort, or Adam on that gradient

    Client i:
    3.  W_i ← its initial head;  τ times:  W_i ← W_i − β ∇_W ℓ_i(W_i, θ)
    4.  send g_i = ∇_θ ℓ_i(W_i, θ)

With `head = "kept"` step 3 continues from the W_i of the last visit, as in the experiments of the PFLEGO authors. The
only difference from PFLEGO is then that head and body are trained one after the other, never by one step on both.
Deviation: steps 3 and 4 use the same examples. The paper uses two halves of the client's data.
Deviation: the initial head is drawn once per client, not once per visit, and kept next to W_i. W_i itself is kept only
to be used between visits.
Deviation: θ does not move, so its features are computed once, and the backward pass of step 4 starts from them.
"""

from typing import Literal

from torch import Tensor

from coterie.core.fields import Count, Rate, ServerRate
from coterie.core.method import AdaptsHead, Client, Data, FixedBody, Passes, Round, Task, Tree, Update, settings
from coterie.core.steps import adam_memory, head_descent, head_gradient, server_step
from coterie.core.tree import pick, under, within


@settings
class FedRecon(FixedBody, AdaptsHead):
    """Shared body, heads rebuilt at each visit: head steps on fixed features, then the body's gradient."""

    labels = "local"

    tau: Count = 50
    """Number of local steps on the head."""
    beta: Rate = 0.007
    """Learning rate of the head steps."""
    rho: ServerRate = 0.003
    server: Literal["sgd", "adam"] = "adam"
    """Optimizer of the server."""
    head: Literal["rebuilt", "kept"] = "rebuilt"
    """Whether head steps start from the client's initial head, or from the head of its last visit."""

    def init_shared(self, task: Task) -> Tree:
        return task.shared_body()

    def init_memory(self, task: Task, shared: Tree) -> Tree:
        return adam_memory(pick(shared, task.body)) if self.server == "adam" else {}

    def init_personal(self, task: Task, client: Client) -> Tree:
        W = task.new_head(client.num_outputs, client.seed)
        return {**W, **(under("initial", W) if self.head == "rebuilt" else {}), **task.personal_buffers()}

    def on_features(
        self, task: Task, personal: Tree, features: Tensor, data: Data, rnd: Round
    ) -> tuple[Tensor, Tree, Tree]:
        W = self._reconstructed(task, personal, features, data, rnd.steps)
        _, g_features, loss = head_gradient(task, W, features, data, over_head=False)
        return g_features, {"loss": loss}, W

    def _reconstructed(self, task: Task, personal: Tree, features: Tensor, data: Data, steps: int) -> Tree:
        """Do step 3."""
        start = within("initial", personal) if self.head == "rebuilt" else personal
        return head_descent(task, pick(start, task.head), features, data, steps, self.beta)

    def passes(self, size: int, rnd: Round) -> Passes:
        return Passes(size, body_forwards=1, body_backwards=1, head_steps=rnd.steps, frozen_head=1)

    def server_update(self, task: Task, shared: Tree, memory: Tree, update: Update, rnd: Round) -> tuple[Tree, Tree]:
        return server_step(task, shared, memory, update, self.rho)

    def adapt_head(self, task: Task, shared: Tree, personal: Tree, features: Tensor, data: Data, steps: int) -> Tree:
        return self._reconstructed(task, personal, features, data, steps)
