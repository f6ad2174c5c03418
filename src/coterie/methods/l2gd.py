"""L2GD: personal models that are pulled towards their mean, at random times.

F. Hanzely, P. Richtárik, "Federated Learning of a Mixture of Global and Local Models", arXiv:2002.05516, 2020,
Algorithm 1 (loopless local gradient descent). The objective is

    (1/n) Σ_i f_i(x_i) + (λ/2n) Σ_i ||x_i − x̄||²,  where  x̄ = (1/n) Σ_i x_i  and  f_i(x) = ℓ_i(x) + (μ/2) ||x||²

Each iteration tosses a coin. With probability 1 − p, all clients step on f_i; with probability p, they step towards x̄:

    Server, round t:
    1.  draw the number k of local steps, until the coin shows heads, and the number m of heads in a row;
        draw a cohort, or take everyone; send it x̄ and k
    2.  x̄ ← (1/r) Σ_i x_i, the sum over the r clients of the cohort; send it x̄ again, and m

    Client i, with its own model x_i:
    3.  k times:  x_i ← x_i − η/(1 − p) ∇ f_i(x_i), on the next minibatch
    4.  send x_i − x̄
    5.  once x̄ is there, m times:  x_i ← x_i − (η λ/p) (x_i − x̄)

A round is one communication. x̄ stays the same during 5, so all m steps there are one move:
x_i ← x̄ + (1 − η λ/p)^m (x_i − x̄). Both k and m are at least 1, because other coins send nothing or change nothing.
By theory p = λ/(L + λ) and η ≤ min((1 − p)/L, p/λ)/2. The x_i then come close to the solution, and closer with a
smaller η. With λ = 0 each client trains alone. With η λ = p and everyone in each round, all models agree after it: this
is FedAvg with k local steps. A client starts from x̄ when it is first drawn, and uses x̄ until then.
Deviation: the paper's step size is n η, so that its n cancels here: a client need not know n to adapt.
Deviation: the paper has everyone in each round. A cohort's mean stands for x̄, and the other clients do nothing.
To adapt, a client steps on f_i + (λ/2) ||x_i − x̄||² with x̄ fixed, at rate η.
"""

from typing import Annotated

import torch
from pydantic import Field

from coterie.core.fields import BatchSize, Rate, Regularizer
from coterie.core.method import Client, Data, Receives, Reply, Round, Task, Tree, settings
from coterie.core.steps import Pull, control, local_sgd
from coterie.core.tree import displacement, pick
from coterie.errors import UserError


@settings
class L2GD(Receives):
    """Each client has its own model; local steps alternate with steps towards the mean of the models, at random."""

    gradients_per_step = 1
    users = "equal"

    eta: Rate = 0.05
    """Learning rate: local steps use eta / (1 - p), and steps towards the mean move eta * lam / p of the way."""
    lam: Rate = 1.0
    """λ: strength of the pull towards the mean. 0 trains each client alone."""
    p: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Probability of a step towards the mean, in place of a local step."""
    mu: Regularizer = 0.0
    batch_size: BatchSize = 0

    def init_personal(self, task: Task, client: Client) -> Tree:
        return {**task.initial, ".visited": task.flag()}

    def plan(self, rnd: Round) -> Round:
        if self.eta * self.lam > self.p:
            raise UserError(
                f"method.eta * method.lam / method.p = {self.eta * self.lam / self.p:.3g} is above 1, so that steps "
                "would pass the mean of the models; lower eta or lam, or raise p"
            )
        return rnd.announce(steps=control.steps_to_coin(self.p, rnd))

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> Reply:
        start, rate = self.personal_params(task, shared, personal), self.eta / (1 - self.p)
        after, loss = local_sgd(task, start, data, rnd.steps, rate, self.batch_size, pull=Pull(self.mu))
        return Reply(displacement(after, shared), {"loss": loss}, _visited(personal, after))

    def receive(self, task: Task, shared: Tree, personal: Tree, rnd: Round) -> Tree:
        left = (1 - self.eta * self.lam / self.p) ** control.steps_to_coin(1 - self.p, rnd, "pulls")
        pulled = {name: shared[name] + left * (personal[name] - shared[name]) for name in task.params}
        return {**personal, **pulled}

    def personal_params(self, task: Task, shared: Tree, personal: Tree) -> Tree:
        visited = personal[".visited"]
        own = {name: torch.where(visited, personal[name], value) for name, value in shared.items()}
        return {**pick(personal, task.initial), **own}

    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        start, both = self.personal_params(task, shared, personal), self.mu + self.lam
        centre = {name: self.lam / both * shared[name] for name in task.params} if both else None
        after, _ = local_sgd(task, start, data, steps, self.eta, self.batch_size, pull=Pull(both, centre))
        return _visited(personal, after)


def _visited(personal: Tree, model: Tree) -> Tree:
    return {**model, ".visited": torch.ones_like(personal[".visited"])}
