"""FedSGD: one gradient a round.

H. B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas, "Communication-Efficient Learning of Deep Networks
from Decentralized Data", AISTATS 2017, section 2.

    Server, round t:
    1.  draw a cohort; send it the model w
    2.  w ← w − η Σ_i (N_i / Σ_j N_j) ∇ ℓ_i(w), the sums over the cohort

    Client i:
    3.  send −η ∇ ℓ_i(w)

This is FedAvg with one local step, FedDecay with β = 0, and FOMAML with one step, to the last bit.
Deviation: in the paper clients send ∇ ℓ_i(w), and the server multiplies it by η. With a batch size, step 3 uses a
minibatch.
"""

from coterie.core.fields import BatchSize, Rate, Users
from coterie.core.method import Data, Method, Reply, Round, Task, Tree, Update, settings
from coterie.core.steps import fine_tuned, sgd_reply


@settings
class FedSGD(Method):
    """One model for all clients, and one gradient from each client of the cohort per round."""

    gradients_per_step = 1

    eta: Rate = 0.1
    """Learning rate of the step, and of the steps by which a client adapts the model."""
    users: Users = "sizes"
    batch_size: BatchSize = 0

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> Reply:
        return sgd_reply(task, shared, personal, data, rnd.steps, self.eta, self.batch_size)

    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        return fine_tuned(task, {**shared, **personal}, data, steps, self.eta, self.batch_size)

    def notes(self, update: Update, rnd: Round) -> dict[str, float | str]:
        """Record that FedSGD does not emphasize fast personalization (Table 1 of the FedDecay paper)."""
        return {"emphasis": 0.0} if rnd.index == 1 else {}
