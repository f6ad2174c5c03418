"""FedBN: federated averaging of all but the BatchNorm layers.

X. Li, M. Jiang, X. Zhang, M. Kamp, Q. Dou, "FedBN: Federated Learning on Non-IID Features via Local Batch
Normalization", ICLR 2021, Algorithm 1.

    Server, round t:
    1.  draw a cohort; send it w, the model without its BatchNorm layers
    2.  w ← Σ_i (N_i / Σ_j N_j) w_i, the sums over the cohort

    Client i, with its own BatchNorm layers b_i: weights, biases and statistics (at first the initial ones):
    3.  w_i ← w;  τ times:  (w_i, b_i) ← (w_i, b_i) − η ∇ ℓ_i(w_i, b_i), both at once, on the next minibatch
    4.  send w_i − w; keep b_i

BatchNorm layers are recognized by their type, not by their names. Other kinds of normalization are shared. Without
BatchNorm in the model this is FedAvg.
The paper has no rule for clients that never took part. They have the initial BatchNorm layers, and their scores before
adaptation mean nothing (0.3 % on FEMNIST's new users in the runs of FedDecay's authors, who do the same). Sending them
what others learned would contradict step 4, and statistics of their own data before they have w would belong to another
model. Adaptation fixes this: it starts with a pass of w over their data.
Deviation: in the paper all clients take part in each round. The cohort stands for them, as in FedAvg. The setting
model.buffers does not affect BatchNorm here.
Deviation: step 2 weights clients by size, as FedAvg does. The paper leaves the weights open, and the authors' code has
equal weights, which is `users = "equal"` here.
"""

from coterie.core.fields import BatchSize, LocalRate, LocalSteps, Users
from coterie.core.method import Client, Data, Method, Reply, Round, Task, Tree, settings
from coterie.core.steps import fine_tuned, sgd_reply
from coterie.core.tree import pick


@settings
class FedBN(Method):
    """FedAvg with BatchNorm layers, including their statistics, that stay with the clients."""

    gradients_per_step = 1

    tau: LocalSteps = 50
    eta: LocalRate = 0.007
    users: Users = "sizes"
    batch_size: BatchSize = 0

    def init_shared(self, task: Task) -> Tree:
        return {name: value for name, value in task.shared_model().items() if name not in task.norm}

    def init_personal(self, task: Task, client: Client) -> Tree:
        return {**task.personal_buffers(), **pick(task.initial, task.norm)}

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> Reply:
        return sgd_reply(task, shared, personal, data, rnd.steps, self.eta, self.batch_size)

    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        return fine_tuned(task, {**shared, **personal}, data, steps, self.eta, self.batch_size)
