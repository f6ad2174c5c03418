"""FedPer: federated averaging of the body alone.

M. G. Arivazhagan, V. Aggarwal, A. K. Singh, S. Choudhary, "Federated Learning with Personalization Layers",
arXiv:1912.00818, Algorithms 1 and 2.

    Server, round t:
    1.  draw a cohort; send it θ
    2.  θ ← Σ_i (N_i / Σ_j N_j) θ_i, the sums over the cohort

    Client i, with its own head W_i (drawn at its first visit):
    3.  θ_i ← θ;  τ times:  (θ_i, W_i) ← (θ_i, W_i) − β ∇ ℓ_i(W_i, θ_i), both at once, on the next minibatch
    4.  send θ_i − θ; keep W_i

With an empty head this is FedAvg.
With a schedule `decay`, step k = 0, 1, ... of a round has the rate β β_k, as in FedDecay; a client adapts at β.
Deviation: in the paper all clients take part in each round. The cohort stands for them, as in FedAvg.
"""

from coterie.core.fields import Adapts, BatchSize, Clip, Decay, LocalRate, LocalSteps
from coterie.core.method import Client, Data, Method, Reply, Round, Task, Tree, settings
from coterie.core.steps import fine_tuned, local_rates, sgd_reply


@settings
class FedPer(Method):
    """Shared body, personal heads: joint local steps on both, then the size-weighted average of the bodies."""

    labels = "local"
    gradients_per_step = 1

    tau: LocalSteps = 50
    beta: LocalRate = 0.007
    batch_size: BatchSize = 0
    decay: Decay = "none"
    clip: Clip = 0.0
    adapts: Adapts = "model"

    def init_shared(self, task: Task) -> Tree:
        return task.shared_body()

    def init_personal(self, task: Task, client: Client) -> Tree:
        head = task.new_head(client.num_outputs, client.seed) if task.head else {}
        return {**head, **task.personal_buffers()}

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> Reply:
        rates = local_rates(task, self.beta, self.decay, data, rnd, self.batch_size)
        return sgd_reply(task, shared, personal, data, rnd.steps, rates, self.batch_size, clip=self.clip)

    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        """Do step 3, or its part on the head. A body that results stays with the client."""
        start, over = {**shared, **personal}, task.head if self.adapts == "head" else None
        return fine_tuned(task, start, data, steps, self.beta, self.batch_size, over=over, clip=self.clip)
