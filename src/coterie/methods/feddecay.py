"""FedDecay: federated averaging whose local rates decay within each round.

"Balancing Model Performance and Rapid Personalization in Federated Learning with Learning Rate Scheduling", under
review, equations 4, 7 and 8, Appendices A.1 and B.2.

    Server, round j = 0, 1, ...:
    1.  draw a cohort; send it the model w
    2.  w ← the mean of the w_i over the cohort, with equal weights                                             (4)

    Client i, with α_j = η / (1 + d j):
    3.  w_i ← w;  for k = 0, .., τ−1:  w_i ← w_i − α_j β_k ∇ ℓ_i(w_i) on the next minibatch                     (7)
    4.  send w_i − w = −α_j Σ_k β_k g_k                                                                         (8)

β_k is β^k, or max(1 − k (1 − β), 0), or given; each round starts again at β_0. β = 0 is FedSGD, and β = 1 is FedAvg
with equal clients. α_j is Theorem 1's c / (j + d') with η = c/d' and d = 1/d'.

The note `emphasis` is Table 1. Equation 10 and Appendix A.1 differ: the coefficient of the mean Hessian-gradient
product is η β (1 − β^{K−1}) (1 − β^K) / ((1 + β) (1 − β)²), as in the appendix. Equation 10 lost the factor η β,
without which Table 1 would not follow. (K = 2 shows it: only the second step sees a moved model, which moved by η, and
that step has the weight β.)
Deviation: with `users = "sizes"`, step 2 is Σ_S p_i w_i / Σ_S p_i. Equation 11 is (|C|/|S|) Σ_S p_i w_i instead. It is
unbiased for any p_i, and the mean here only for equal ones, where both are (4). In exchange, the weights here always
sum to 1, so that a cohort of small clients does not shrink the model.
Deviation: the authors' code has form "displacement" and unit "epoch". It uses full rates, and shrinks the displacement
of an epoch to β_e of it when the epoch or the round ends. This equals "rate" only with one batch per epoch.
"""

import math
from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from coterie.core.fields import BatchSize, LocalSteps, Rate, Users
from coterie.core.method import Data, Method, Reply, Round, Task, Tree, Update, settings
from coterie.core.steps import epoch_steps, fine_tuned, local_gradient, sgd_reply, turns
from coterie.core.tree import descend, displacement, pick


def emphasis(rates: Sequence[float], sent: Sequence[float] | None = None) -> float:
    """Return the weight of fast personalization relative to initial success, in the first round (Table 1).

    Args:
        rates: learning rate of each local step.
        sent: weight of each local gradient in the message; by default its rate. [eta] is FedSGD, [eta] * K is FedAvg,
            and [eta] * K with [0, .., 0, 1] sent is FOMAML.
    """
    sent = sent or rates
    return math.fsum(w * math.fsum(rates[:j]) for j, w in enumerate(sent)) / math.fsum(sent)


def emphasis_limit(eta: float, beta: float) -> float:
    """Return the limit of `emphasis` for many steps of exponential decay: 0 for FedSGD, infinite for FedAvg."""
    return beta * eta / (1 - beta**2) if beta < 1 else math.inf


@settings
class FedDecay(Method):
    """FedAvg with local rates that decay within the round: from FedSGD (beta 0) to FedAvg (beta 1)."""

    gradients_per_step = 1

    tau: LocalSteps = 10
    eta: Rate = 0.1
    """Learning rate of the first local step in the first round, and of all steps by which a client adapts the model."""
    eta_decay: Rate = 0.0
    """d of eta / (1 + d j) in round j = 0, 1, ...; 0 keeps the rate the same in every round."""
    beta: Annotated[float, Field(ge=0, le=1)] = 0.6
    """Factor by which rates decay within a round; 1 is no decay."""
    decay: Literal["exponential", "linear"] | Annotated[list[Rate], Field(min_length=1)] = "exponential"
    """Factors of the rates: beta^k, or max(1 - k (1 - beta), 0), or a list of factors; its last one is repeated."""
    unit: Literal["step", "epoch"] = "step"
    """What k counts: local steps, or passes over the client's examples."""
    form: Literal["rate", "displacement"] = "rate"
    """Whether the rates decay, or the displacement of each unit is shrunk at its end."""
    users: Users = "equal"
    batch_size: BatchSize = 0

    def factor(self, k: int) -> float:
        """Return β_k."""
        if self.decay == "exponential":
            return self.beta**k
        if self.decay == "linear":
            return max(1 - k * (1 - self.beta), 0.0)
        return float(self.decay[min(k, len(self.decay) - 1)])

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> Reply:
        alpha = self.eta / (1 + self.eta_decay * (rnd.index - 1))
        unit = epoch_steps(data, self.batch_size) if self.unit == "epoch" else torch.ones_like(data.mask.sum())
        table = task.initial[task.params[0]].new_tensor([self.factor(e) for e in range(rnd.steps)])

        def factor(k: int) -> float | Tensor:
            return table[(k // unit).clamp(max=rnd.steps - 1)] if self.unit == "epoch" else self.factor(k)

        if self.form == "rate":
            return sgd_reply(task, shared, personal, data, rnd.steps, lambda k: alpha * factor(k), self.batch_size)
        after, last = {**shared, **personal}, torch.zeros(())
        before = pick(after, task.params)
        for turn in turns(rnd.steps, data, self.batch_size):
            g, loss, buffers = local_gradient(task, after, turn.batch, task.params)
            moved = descend(pick(after, task.params), g, alpha)
            ends = ((turn.step + 1) % unit == 0) | turn.last
            shrunk = {name: value + factor(turn.step) * (moved[name] - value) for name, value in before.items()}
            now = {name: torch.where(ends, shrunk[name], moved[name]) for name in task.params}
            after, last = turn.kept({**after, **buffers, **now}, after), turn.kept_value(loss, last)
            before = {name: torch.where(ends, shrunk[name], value) for name, value in before.items()}
        return Reply(displacement(after, shared), {"loss": last}, pick(after, personal))

    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        return fine_tuned(task, {**shared, **personal}, data, steps, self.eta, self.batch_size)

    def notes(self, update: Update, rnd: Round) -> dict[str, float | str]:
        """Record how much FedDecay emphasizes fast personalization (Table 1)."""
        counts_steps = isinstance(self.tau, int) and (self.unit == "step" or not self.batch_size)
        factors = [self.factor(k) for k in range(self.tau)] if counts_steps and isinstance(self.tau, int) else []
        if rnd.index > 1 or not any(factors):
            return {}
        return {"emphasis": emphasis([self.eta * each for each in factors], factors)}
