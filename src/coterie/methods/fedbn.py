"""FedBN: federated averaging of all but the BatchNorm layers.

X. Li, M. Jiang, X. Zhang, M. Kamp, Q. Dou, "FedBN: Federated Learning on Non-IID Features via Local Batch
Normalization", ICLR 2021, Algorithm 1.

    Server, round t:
    1.  draw a cohort; send it w, the model without its BatchNorm layers
    2.  w ← Σ_i (N_i / Σ_j N_j) w_i, the sums over the cohort

    Client i, with its own BatchNorm layers b_i: weights, biases and statistics (at first the initial ones):
    3.  w_i ← w;  τ times:  (w_i, b_i) ← (w_i, b_i) − η ∇ ℓ_i(w_i, b_i), both at once, on the next minibatch
    4.  send w_i − w; keep b_i

Which layers these are is told by their type, not by their names; other kinds of normalization are shared. With no
BatchNorm in the model this is FedAvg.
The paper has no rule for clients that never took part. They have BatchNorm as it was initialized, and their scores
before adaptation mean nothing (0.3 % on FEMNIST's new users in the runs of FedDecay's authors, who do the same): to
send them what others learned would be against 4, and statistics made of their own data before w is there would be those
of another model. Adaptation, which starts with a pass of w over their data, is what mends this.
Deviation: in the paper all clients take part in each round. The cohort stands for them, as in FedAvg. The setting
model.buffers has no say over BatchNorm here.
"""

from torch import Tensor

from coterie.core.method import Client, Data, Length, Method, Passes, Rate, Round, Size, Task, Tree, settings
from coterie.core.steps import Users, fine_tuned, local_sgd, sgd_passes, shares
from coterie.core.tree import displacement, pick, shift


@settings
class FedBN(Method):
    """FedAvg with BatchNorm layers, statistics and all, that stay with the clients."""

    tau: Length = 50
    """Local steps, or "2 epochs" of the client's examples."""
    eta: Rate = 0.007
    """Rate of the local steps."""
    users: Users = "sizes"
    """Whether clients count alike or by size."""
    batch_size: Size = 0
    """Examples a step; 0 is all of the client's."""

    def init_shared(self, task: Task) -> Tree:
        return {name: value for name, value in task.shared_model().items() if name not in task.norm}

    def init_personal(self, task: Task, client: Client) -> Tree:
        return {**task.personal_buffers(), **pick(task.initial, task.norm)}

    def plan(self, rnd: Round) -> Round:
        return rnd.announce(steps=self.tau)

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> tuple[Tree, Tree]:
        after, loss = local_sgd(task, {**shared, **personal}, data, rnd.steps, self.eta, self.batch_size)
        return {**displacement(after, shared), "loss": loss}, pick(after, personal)

    def passes(self, size: int, rnd: Round) -> Passes:
        return sgd_passes(size, rnd.steps, self.batch_size)

    def weights(self, sizes: Tensor, rnd: Round) -> Tensor:
        return shares(self.users, sizes)

    def server_update(self, task: Task, shared: Tree, memory: Tree, update: Tree, rnd: Round) -> tuple[Tree, Tree]:
        return shift(shared, update), memory

    def local_shared(self, shared: Tree, message: Tree) -> Tree:
        return shift(shared, message)

    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        return fine_tuned(task, {**shared, **personal}, data, steps, self.eta, self.batch_size)
