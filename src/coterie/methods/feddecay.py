"""FedDecay: federated averaging whose local rates decay within each round.

"Balancing Model Performance and Rapid Personalization in Federated Learning with Learning Rate Scheduling", under
review, equations 4, 7 and 8, Appendices A.1 and B.2.

    Server, round j = 0, 1, ...:
    1.  draw a cohort; send it the model w
    2.  w ← the mean of the w_i over the cohort, with equal weights                                             (4)
        or, for weights p_i over all clients:  w ← (|C|/|S|) Σ_S p_i w_i                                       (11)
        (with 1/Pr(i) instead of |C|/|S| if clients take part with unequal probabilities)

    Client i, with α_j = η / (1 + d j):
    3.  w_i ← w;  for k = 0, .., τ−1:  w_i ← w_i − α_j β_k ∇ ℓ_i(w_i) on the next minibatch                     (7)
    4.  send w_i − w = −α_j Σ_k β_k g_k                                                                         (8)

β_k is β^k, or max(1 − k (1 − β), 0), or another schedule; each round starts again at β_0. β = 0 is FedSGD, and β = 1 is
FedAvg with equal clients. α_j is Theorem 1's c / (j + d') with η = c/d' and d = 1/d'. The schedule "inverse D" is the
one that the paper argues against: c / (t + d') through all steps t of the run, with D = 1/d'.

The note `emphasis` is Table 1. Equation 10 and Appendix A.1 differ: the coefficient of the mean Hessian-gradient
product is η β (1 − β^{K−1}) (1 − β^K) / ((1 + β) (1 − β)²), as in the appendix. Equation 10 lost the factor η β,
without which Table 1 would not follow. (K = 2 shows it: only the second step sees a moved model, which moved by η, and
that step has the weight β.)
Deviation: with `users = "sizes"`, step 2 is Σ_S p_i w_i / Σ_S p_i by default. Equation 11 needs `average = "unbiased"`.
It is unbiased for any p_i, and the mean only for equal ones, where both are (4). In exchange, the weights of the mean
always sum to 1, so that a cohort of small clients does not shrink the model.
Deviation: momentum and Adam are not in the paper, which leaves them for later; its theory is about plain steps.
Deviation: the authors' code has form "displacement" and unit "epoch". It uses full rates, and shrinks the displacement
of an epoch to β_e of it when the epoch or the round ends. This equals "rate" only with one batch per epoch.
"""

import math
from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from coterie.core.fields import BatchSize, DecayByBeta, LocalSteps, Rate, Users
from coterie.core.method import Data, Method, Reply, Round, Task, Tree, Update, settings
from coterie.core.schedule import Place, schedule
from coterie.core.steps import (
    LocalRates,
    epoch_steps,
    local_adam,
    local_factors,
    local_gradient,
    local_sgd,
    server_sum,
    turns,
    unbiased_shares,
)
from coterie.core.tree import descend, displacement, pick
from coterie.errors import UserError


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
    decay: DecayByBeta = "exponential"
    """Schedule of the rate within a round: "exponential", "linear" or "cosine" with the number beta, a schedule with a
    number of its own such as "polynomial 2", or a list of factors; its last one is repeated."""
    unit: Literal["step", "epoch"] = "step"
    """What k counts: local steps, or passes over the client's examples."""
    form: Literal["rate", "displacement"] = "rate"
    """Whether the rates decay, or the displacement of each unit is shrunk at its end."""
    solver: Literal["gd", "momentum", "adam"] = "gd"
    """Solver of the local steps: gradient descent, the same with momentum 0.9, or Adam. It starts from rest."""
    users: Users = "equal"
    average: Literal["cohort", "unbiased"] = "cohort"
    """Step 2 as a mean over the cohort, or as the sum of equation 11, which is unbiased also with users = "sizes"."""
    batch_size: BatchSize = 0

    def factors(self, K: int) -> list[float]:
        """Return β_0, .., β_{K−1} in the first round."""
        factor = schedule(self.decay, self.beta)
        return [float(factor(Place(k, K))) for k in range(K)]

    def plan(self, rnd: Round) -> Round:
        if self.form == "displacement" and self.solver != "gd":
            raise UserError(f'method.form = "displacement" needs method.solver = "gd", not "{self.solver}"')
        return super().plan(rnd)

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> Reply:
        alpha = self.eta / (1 + self.eta_decay * (rnd.index - 1))
        factor = local_factors(task, schedule(self.decay, self.beta), data, rnd, self.batch_size, self.unit)
        start = {**shared, **personal}
        if self.form == "rate":
            after, loss = self._solve(task, start, data, rnd.steps, lambda k: alpha * factor(k))
        else:
            after, loss = self._shrunk(task, start, data, rnd.steps, alpha, factor)
        return Reply(displacement(after, shared), {"loss": loss}, pick(after, personal))

    def _solve(self, task: Task, start: Tree, data: Data, steps: int, rates: LocalRates) -> tuple[Tree, Tensor]:
        """Do step 3 with the solver."""
        if self.solver == "adam":
            return local_adam(task, start, data, steps, rates, self.batch_size)
        momentum = 0.9 if self.solver == "momentum" else 0.0
        return local_sgd(task, start, data, steps, rates, self.batch_size, momentum=momentum)

    def _shrunk(
        self, task: Task, start: Tree, data: Data, steps: int, rate: float, factor: LocalRates
    ) -> tuple[Tree, Tensor]:
        """Do step 3 at full rate, and shrink the displacement of each unit at its end."""
        unit = epoch_steps(data, self.batch_size) if self.unit == "epoch" else torch.ones_like(data.mask.sum())
        after, last = start, torch.zeros(())
        before = pick(after, task.params)
        for turn in turns(steps, data, self.batch_size):
            g, loss, buffers = local_gradient(task, after, turn.batch, task.params)
            moved = descend(pick(after, task.params), g, rate)
            ends = ((turn.step + 1) % unit == 0) | turn.last
            shrunk = {name: value + factor(turn.step) * (moved[name] - value) for name, value in before.items()}
            now = {name: torch.where(ends, shrunk[name], moved[name]) for name in task.params}
            after, last = turn.kept({**after, **buffers, **now}, after), turn.kept_value(loss, last)
            before = {name: torch.where(ends, shrunk[name], value) for name, value in before.items()}
        return after, last

    def weights(self, sizes: Tensor, rnd: Round) -> Tensor:
        return unbiased_shares(self.users, sizes, rnd) if self.average == "unbiased" else super().weights(sizes, rnd)

    def server_update(self, task: Task, shared: Tree, memory: Tree, update: Update, rnd: Round) -> tuple[Tree, Tree]:
        if self.average == "unbiased":
            return server_sum(task, shared, update), memory
        return super().server_update(task, shared, memory, update, rnd)

    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        return self._solve(task, {**shared, **personal}, data, steps, lambda _: self.eta)[0]

    def notes(self, update: Update, rnd: Round) -> dict[str, float | str]:
        """Record how much FedDecay emphasizes fast personalization (Table 1), which is known for gradient descent."""
        counts_steps = isinstance(self.tau, int) and (self.unit == "step" or not self.batch_size)
        known = counts_steps and self.solver == "gd" and rnd.index == 1
        factors = self.factors(self.tau) if known and isinstance(self.tau, int) else []
        return {"emphasis": emphasis([self.eta * each for each in factors], factors)} if any(factors) else {}
