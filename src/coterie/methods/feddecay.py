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

from coterie.core.method import Data, Length, Method, Passes, Rate, Round, Size, Task, Tree, settings
from coterie.core.steps import Users, epoch_steps, fine_tuned, local_gradient, local_sgd, sgd_passes, shares, turns
from coterie.core.tree import descend, displacement, pick, shift


def emphasis(rates: Sequence[float], sent: Sequence[float] | None = None) -> float:
    """Table 1: fast personalization against initial success, from the rates and what each local gradient weighs in the
    message, by default its rate. [eta] is FedSGD, [eta] * K is FedAvg, and that with [0, .., 0, 1] sent is FOMAML."""
    return math.fsum(w * math.fsum(rates[:j]) for j, w in enumerate(sent or rates)) / math.fsum(sent or rates)


def emphasis_limit(eta: float, beta: float) -> float:
    """The same for ever more steps of exponential decay: 0 for FedSGD, without bound for FedAvg (and FOMAML)."""
    return beta * eta / (1 - beta**2) if beta < 1 else math.inf


@settings
class FedDecay(Method):
    """FedAvg with local rates that decay within the round: from FedSGD (beta 0) to FedAvg (beta 1)."""

    tau: Length = 10
    """Local steps, or "2 epochs" of the client's examples."""
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

    def emphasis(self) -> float | None:
        steps = self.tau if isinstance(self.tau, int) and (self.unit == "step" or not self.batch_size) else 0
        factors = [self.factor(k) for k in range(steps)]
        return emphasis([self.eta * each for each in factors], factors) if any(factors) else None

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> tuple[Tree, Tree]:
        alpha, over, start = self.eta / (1 + self.eta_decay * (rnd.index - 1)), task.body + task.head, shared | personal
        unit = epoch_steps(data, self.batch_size) if self.unit == "epoch" else torch.ones_like(data.mask.sum())
        table = start[over[0]].new_tensor([self.factor(e) for e in range(rnd.steps)])

        def factor(k: int) -> float | Tensor:
            return table[(k // unit).clamp(max=rnd.steps - 1)] if self.unit == "epoch" else self.factor(k)

        if self.form == "rate":
            after, loss = local_sgd(task, start, data, rnd.steps, lambda k: alpha * factor(k), self.batch_size)
            return {**displacement(after, shared), "loss": loss}, pick(after, personal)
        after, before = {**start, "loss": torch.zeros(())}, pick(start, over)
        for turn in turns(rnd.steps, data, self.batch_size):
            g, loss, buffers = local_gradient(task, after, turn.batch, over)
            moved, ends = descend(pick(after, over), g, alpha), ((turn.step + 1) % unit == 0) | turn.last
            shrunk = {name: value + factor(turn.step) * (moved[name] - value) for name, value in before.items()}
            now = {name: torch.where(ends, shrunk[name], moved[name]) for name in over}
            after = turn.kept({**after, **buffers, **now, "loss": loss}, after)
            before = {name: torch.where(ends, shrunk[name], value) for name, value in before.items()}
        return {**displacement(after, shared), "loss": after["loss"]}, pick(after, personal)

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
