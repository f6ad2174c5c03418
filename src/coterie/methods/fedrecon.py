"""FedRecon: heads that are rebuilt when they are needed.

K. Singhal, H. Sidahmed, Z. Garrett, S. Wu, J. Rush, S. Prakash, "Federated Reconstruction: Partially Local Federated
Learning", NeurIPS 2021, Algorithm 1, with gradient descent as its reconstruction and one step on the body.

    Server, round t:
    1.  draw a cohort; send it θ
    2.  θ ← θ − ρ Σ_i (N_i / Σ_j N_j) g_i, the sums over the cohort, or Adam on that gradient

    Client i:
    3.  W_i ← its initial head;  τ times:  W_i ← W_i − β ∇_W ℓ_i(W_i, θ)
    4.  send g_i = ∇_θ ℓ_i(W_i, θ)

With `head = "kept"` step 3 goes on from the W_i of the last visit, as the authors of PFLEGO have it; what then differs
from PFLEGO is that head and body are trained one after the other, never by one step on both.
Deviation: 3 and 4 see the same examples; the paper has them on two halves of the client's data.
Deviation: the initial head is drawn once a client, not once a visit, and kept beside W_i to start from. W_i itself is
kept only to be used between the visits.
Deviation: θ does not move, so its features are computed once, and the backward pass of 4 starts from them.
"""

from typing import ClassVar, Literal

from torch import Tensor
from torch.func import grad_and_value

from coterie.core.method import Client, Count, Data, Labels, Method, Passes, Rate, Round, Task, Tree, settings
from coterie.core.steps import adam_memory, around_features, head_descent, server_step
from coterie.core.tree import pick


@settings
class FedRecon(Method):
    """Shared body, heads rebuilt at each visit: head steps on fixed features, then the body's gradient."""

    labels: ClassVar[Labels] = "local"
    fixed_body: ClassVar[bool] = True

    tau: Count = 50
    """Local steps on the head."""
    beta: Rate = 0.007
    """Rate of the head steps."""
    rho: Rate = 0.003
    """Rate of the server's step."""
    server: Literal["sgd", "adam"] = "adam"
    """What the server does with the aggregated gradient."""
    head: Literal["rebuilt", "kept"] = "rebuilt"
    """Whether head steps start from the client's initial head, or from the head of its last visit."""

    def init_shared(self, task: Task) -> Tree:
        return task.shared_body()

    def init_memory(self, task: Task, shared: Tree) -> Tree:
        return adam_memory(pick(shared, task.body)) if self.server == "adam" else {}

    def init_personal(self, task: Task, client: Client) -> Tree:
        W = task.new_head(client.num_outputs, client.seed)
        initial = {f"initial.{name}": value for name, value in W.items()} if self.head == "rebuilt" else {}
        return {**W, **initial, **task.personal_buffers()}

    def plan(self, rnd: Round) -> Round:
        return rnd.announce(steps=self.tau)

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> tuple[Tree, Tree]:
        return around_features(
            task, shared, personal, data, lambda features: self.on_features(task, personal, features, data, rnd)
        )

    def on_features(
        self, task: Task, personal: Tree, features: Tensor, data: Data, rnd: Round
    ) -> tuple[Tensor, Tree, Tree]:
        W = self._reconstructed(task, personal, features, data, rnd.steps)
        g_features, loss = grad_and_value(task.head_loss, argnums=1)(W, features, data)
        return g_features, {"loss": loss}, W

    def _reconstructed(self, task: Task, personal: Tree, features: Tensor, data: Data, steps: int) -> Tree:
        """Step 3."""
        start = {name: personal[f"initial.{name}" if self.head == "rebuilt" else name] for name in task.head}
        return head_descent(task, start, features, data, steps, self.beta)

    def passes(self, size: int, rnd: Round) -> Passes:
        return Passes(size, body_forwards=1, body_backwards=1, head_steps=rnd.steps, frozen_head=1)

    def weights(self, sizes: Tensor, rnd: Round) -> Tensor:
        return sizes / sizes.sum()

    def server_update(self, task: Task, shared: Tree, memory: Tree, update: Tree, rnd: Round) -> tuple[Tree, Tree]:
        return server_step(task, shared, memory, update, self.rho)

    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        features, _, buffers = task.body_vjp({**shared, **personal}, data.x)
        W = self._reconstructed(task, personal, features, data, steps)
        return pick({**personal, **buffers, **W}, personal)
