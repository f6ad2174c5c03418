"""LG-FedAvg: local representations, a shared head.

P. P. Liang, T. Liu, L. Ziyin, N. B. Allen, R. P. Auerbach, D. Brent, R. Salakhutdinov, L.-P. Morency, "Think Locally,
Act Globally: Federated Learning with Local and Global Representations", arXiv:2001.01523, Algorithm 1.

    Server, round t:
    1.  draw a cohort; send it the head W
    2.  W ← Σ_i (N_i / Σ_j N_j) W_i, the sums over the cohort

    Client i, with its own body θ_i (at first the initial one):
    3.  W_i ← W;  τ times:  (θ_i, W_i) ← (θ_i, W_i) − η ∇ ℓ_i(W_i, θ_i) on the next minibatch
    4.  send W_i − W; keep θ_i

Deviation: a new user starts from the initial body. The paper lets it average the predictions of all clients.
"""

from coterie.core.fields import BatchSize, LocalRate, LocalSteps
from coterie.core.method import Client, Data, Method, Reply, Round, Task, Tree, settings
from coterie.core.steps import fine_tuned, sgd_reply
from coterie.core.tree import pick


@settings
class LGFedAvg(Method):
    """Personal bodies, shared head: joint local steps on both, then the size-weighted average of the heads."""

    gradients_per_step = 1

    tau: LocalSteps = 50
    eta: LocalRate = 0.007
    batch_size: BatchSize = 0

    def init_shared(self, task: Task) -> Tree:
        return pick(task.initial, task.head)

    def init_personal(self, task: Task, client: Client) -> Tree:
        return pick(task.initial, task.body + task.buffers)

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> Reply:
        return sgd_reply(task, shared, personal, data, rnd.steps, self.eta, self.batch_size)

    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        return fine_tuned(task, {**shared, **personal}, data, steps, self.eta, self.batch_size)
