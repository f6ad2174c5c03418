"""FedAvg: federated averaging.

H. B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas, "Communication-Efficient Learning of Deep Networks
from Decentralized Data", AISTATS 2017, Algorithm 1.

    Server, round t:
    1.  draw a cohort; send it the model w
    2.  w ← Σ_i (N_i / Σ_j N_j) w_i, the sums over the cohort

    Client i:
    3.  w_i ← w;  τ times:  w_i ← w_i − η ∇ ℓ_i(w_i) on the next minibatch
    4.  send w_i − w

Deviation: a client sends how far it moved instead of where it arrived. Step 2 is the same, because the weights
sum to one. Local work is τ steps, or epochs if τ is "2 epochs"; without a batch size, each step uses all examples.
"""

from coterie.core.fields import Adapts, BatchSize, Clip, LocalRate, LocalSteps, Users
from coterie.core.method import Data, Method, Reply, Round, Task, Tree, Update, settings
from coterie.core.steps import fine_tuned, sgd_reply


@settings
class FedAvg(Method):
    """One model for all clients: local steps on all parameters, then the size-weighted average."""

    gradients_per_step = 1

    tau: LocalSteps = 50
    eta: LocalRate = 0.007
    users: Users = "sizes"
    batch_size: BatchSize = 0
    clip: Clip = 0.0
    adapts: Adapts = "model"

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> Reply:
        return sgd_reply(task, shared, personal, data, rnd.steps, self.eta, self.batch_size, clip=self.clip)

    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        start, over = {**shared, **personal}, task.head if self.adapts == "head" else None
        return fine_tuned(task, start, data, steps, self.eta, self.batch_size, over=over, clip=self.clip)

    def notes(self, update: Update, rnd: Round) -> dict[str, float | str]:
        """Record how much FedAvg emphasizes fast personalization (Table 1 of the FedDecay paper)."""
        if rnd.index > 1 or isinstance(self.tau, str):
            return {}
        return {"emphasis": (self.tau - 1) * self.eta / 2}
