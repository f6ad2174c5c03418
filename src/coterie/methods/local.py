"""Local: every client trains alone. This is the baseline that federated methods should beat.

    Client i, with its own model v_i (the initial body, and a head of its own):
    1.  τ times:  v_i ← v_i − β ∇ ℓ_i(v_i) on the next minibatch

A client sends nothing but its training loss. The server only draws the cohort: a client that is drawn trains.
"""

from coterie.core.fields import Adapts, BatchSize, Clip, LocalRate, LocalSteps
from coterie.core.method import Client, Data, Method, Reply, Round, Task, Tree, settings
from coterie.core.steps import fine_tuned, local_sgd


@settings
class Local(Method):
    """No federation: each client trains a model of its own, and sends nothing but its training loss."""

    labels = "local"
    gradients_per_step = 1

    tau: LocalSteps = 50
    beta: LocalRate = 0.007
    batch_size: BatchSize = 0
    clip: Clip = 0.0
    adapts: Adapts = "model"

    def init_shared(self, task: Task) -> Tree:
        return {}

    def init_personal(self, task: Task, client: Client) -> Tree:
        head = task.new_head(client.num_outputs, client.seed) if task.head else {}
        return {**task.initial, **head}

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> Reply:
        after, loss = local_sgd(task, personal, data, rnd.steps, self.beta, self.batch_size, clip=self.clip)
        return Reply({}, {"loss": loss}, after)

    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        over = task.head if self.adapts == "head" else None
        return fine_tuned(task, personal, data, steps, self.beta, self.batch_size, over=over, clip=self.clip)
