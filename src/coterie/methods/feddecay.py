"""FedDecay: federated averaging whose local rates decay within each round.

"Balancing Model Performance and Rapid Personalization in Federated Learning with Learning Rate Scheduling", under
review, equations 4, 7, 8 and 11, Appendices A.1 and B.2.

    Server, round j = 0, 1, ...:
    1.  draw a cohort; send it the model w
    2.  w ← the mean of the w_i over the cohort, clients alike

    Client i, with α_j = η / (1 + d j):
    3.  w_i ← w;  for k = 0, .., τ−1:  w_i ← w_i − α_j β_k ∇ ℓ_i(w_i) on the next minibatch                     (7)
    4.  send w_i − w = −α_j Σ_k β_k g_k                                                                         (8)

β_k is β^k, or max(1 − k (1 − β), 0), or given; it starts anew in each round. β = 0 is FedSGD, β = 1 FedAvg with equal
clients. α_j is Theorem 1's c / (j + d') with η = c/d' and d = 1/d'.

`emphasis` is Table 1. Equation 10 and Appendix A.1 differ: the coefficient of the mean Hessian-gradient product is
η β (1 − β^{K−1}) (1 − β^K) / ((1 + β) (1 − β)²), as in the appendix; equation 10 lost the factor η β, without which
Table 1 would not follow (K = 2 shows it: only the second step sees a moved model, moved by η, and weighs β).
Deviation: the authors' code has form "displacement" and unit "epoch": full rates, and what an epoch moved the
parameters by is shrunk to β_e of it when the epoch or the round ends. The same as "rate" only with one batch an epoch.
"""

import math
from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from coterie.method import Count, Data, Method, Passes, Rate, Round, Size, Task, Tree, settings
from coterie.steps import Users, epoch_steps, local_gradient, local_sgd, minibatch, shares
from coterie.tree import descend, displacement, pick, shift


def emphasis(rates: Sequence[float], sent: Sequence[float] | None = None) -> float:
    """How much fast personalization counts against initial success: the coefficient of the mean Hessian-gradient
    product over that of the mean gradient. `sent` has what each local gradient weighs in the message, by default its
    rate: [eta] is FedSGD, [eta] * K is FedAvg, and that with [0, .., 0, 1] sent is FOMAML."""
    sent = rates if sent is None else sent
    return math.fsum(weight * math.fsum(rates[:j]) for j, weight in enumerate(sent)) / math.fsum(sent)


def emphasis_limit(eta: float, beta: float) -> float:
    """The same for ever more steps of exponential decay: 0 for FedSGD, without bound for FedAvg (and FOMAML)."""
    return beta * eta / (1 - beta**2) if beta < 1 else math.inf


@settings
class FedDecay(Method):
    """FedAvg with local rates that decay within the round: from FedSGD (beta 0) to FedAvg (beta 1)."""

    tau: Count = 10
    """Local steps."""
    eta: Rate = 0.1
    """Rate of the first local step, in the first round; that of all steps by which a client adapts the model."""
    eta_decay: Rate = 0.0
    """d of eta / (1 + d j) in round j = 0, 1, ...; 0 is the same in every round."""
    beta: Annotated[float, Field(ge=0, le=1)] = 0.6
    """How fast rates decay within a round: 1 is not at all."""
    decay: Literal["exponential", "linear"] | Annotated[list[Rate], Field(min_length=1)] = "exponential"
    """beta^k, or max(1 - k (1 - beta), 0), or the factors themselves, of which the last stays on."""
    unit: Literal["step", "epoch"] = "step"
    """What k counts: local steps, or passes over the client's examples."""
    form: Literal["rate", "displacement"] = "rate"
    """Whether rates decay, or what a unit moved the model by is shrunk at its end."""
    users: Users = "equal"
    """Whether clients count alike or by size."""
    batch_size: Size = 0
    """Examples a step; 0 is all of the client's."""

    def factor(self, k: int) -> float:
        if self.decay == "exponential":
            return self.beta**k
        if self.decay == "linear":
            return max(1 - k * (1 - self.beta), 0.0)
        return float(self.decay[min(k, len(self.decay) - 1)])

    def plan(self, rnd: Round) -> Round:
        return rnd.announce(steps=self.tau)

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> tuple[Tree, Tree]:
        alpha, over, start = self.eta / (1 + self.eta_decay * (rnd.index - 1)), task.body + task.head, shared | personal
        factors: list[float | Tensor] = [self.factor(k) for k in range(rnd.steps)]
        length = epoch_steps(data, self.batch_size) if self.unit == "epoch" else torch.ones_like(data.mask.sum())
        if self.unit == "epoch":
            table = start[over[0]].new_tensor(factors)
            factors = [table[torch.div(k, length, rounding_mode="floor")] for k in range(rnd.steps)]
        if self.form == "rate":
            after, loss = local_sgd(task, start, data, [alpha * each for each in factors], over, self.batch_size)
            return {**displacement(after, shared), "loss": loss}, pick(after, personal)
        after, before = start, pick(start, over)
        for k, factor in enumerate(factors):
            g, loss, buffers = local_gradient(task, after, minibatch(data, self.batch_size, k), over)
            moved, ends = descend(pick(after, over), g, alpha), ((k + 1) % length == 0) | (k + 1 == rnd.steps)
            shrunk = {name: value + factor * (moved[name] - value) for name, value in before.items()}
            after = {**after, **buffers, **{name: torch.where(ends, shrunk[name], moved[name]) for name in over}}
            before = {name: torch.where(ends, shrunk[name], value) for name, value in before.items()}
        return {**displacement(after, shared), "loss": loss}, pick(after, personal)

    def passes(self, size: int, rnd: Round) -> Passes:
        batch = min(self.batch_size, size) or size
        return Passes(batch, body_forwards=rnd.steps, body_backwards=rnd.steps, head_steps=rnd.steps)

    def weights(self, sizes: Tensor, rnd: Round) -> Tensor:
        return shares(self.users, sizes)

    def server_update(self, task: Task, shared: Tree, memory: Tree, update: Tree, rnd: Round) -> tuple[Tree, Tree]:
        return shift(shared, update), memory

    def local_shared(self, shared: Tree, message: Tree) -> Tree:
        return shift(shared, message)

    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        rates, over = [self.eta] * steps, task.body + task.head
        after, _ = local_sgd(task, {**shared, **personal}, data, rates, over, self.batch_size)
        return after
