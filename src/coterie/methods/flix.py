"""FLIX: explicit mixtures of a shared model with each client's own optimum.

E. Gasanov, A. Khaled, S. Horváth, P. Richtárik, "FLIX: A Simple and Communication-Efficient Alternative to Local
Methods in Federated Learning", AISTATS 2022. The objective (FLIX) is (1/n) Σ_i f_i(α_i x + (1 − α_i) x_i*), with
f_i(x) = ℓ_i(x) + (μ/2) ||x||².

    Client i, once, before its first visit:
    1.  x_i* ← argmin f_i

    Server, round t:
    2.  draw a cohort, or take everyone; send it the model x
    3.  x ← (1/r) Σ_i x_i, the sum over the r clients of the cohort

    Client i:
    4.  x_i ← x;  τ times:  x_i ← x_i − γ α_i ∇ f_i(x̃_i), x̃_i = α_i x_i + (1 − α_i) x_i*, on the next minibatch
    5.  send x_i − x

The model of client i is x̃_i. With τ = 1 and all examples this is gradient descent on (FLIX); with α_i = 1 it is GD.
Deviation: the paper has τ = 1. More steps are FedAvg's on (FLIX), and drift like them.
Step 4 is done on x̃_i, which moves by −γ α_i² ∇ f_i(x̃_i), so that α_i = 0 is an exception in step 5 only.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Self, cast

import torch
from torch import Tensor

from coterie.core.fields import BatchSize, LocalSteps, Regularizer
from coterie.core.method import Calibrates, Client, Data, Prepares, Reply, Round, Task, Tree, settings
from coterie.core.steps import Pull, control, local_sgd, travelling
from coterie.core.steps.control import MixingWeights
from coterie.core.steps.convex import (
    Bound,
    OptimumBatch,
    OptimumEpochs,
    OptimumRate,
    OptimumSolver,
    OptimumStart,
    OptimumTolerance,
    Search,
    Step,
    mean_step,
    theory,
)
from coterie.core.tree import displacement, pick


@settings
class FLIX(Prepares, Calibrates):
    """Each client's model mixes a shared one with its own optimum; gradient descent on the loss of the mixtures."""

    gradients_per_step = 1
    users = "equal"

    alpha: MixingWeights = 0.5
    tau: LocalSteps = 1
    gamma: Step | Bound = 0.5
    """Learning rate. "1/L", "1/trace" and "1/hessian" use the mean of α² L_i: the first two are from theory for linear
    models, the third estimates L_i at the initial model."""
    mu: Regularizer = 0.0
    batch_size: BatchSize = 0
    optimum_solver: OptimumSolver = "gd"
    optimum_rate: OptimumRate = 0.1
    optimum_tolerance: OptimumTolerance = 1e-6
    optimum_epochs: OptimumEpochs = 50
    optimum_batch: OptimumBatch = 0
    optimum_start: OptimumStart = 1.0

    def init_personal(self, task: Task, client: Client) -> Tree:
        return {**task.personal_buffers(), **control.mixing(task, self.alpha, client)}

    def prepare(self, task: Task, personal: Tree, data: Data) -> Tree:
        return control.with_optimum(task, personal, data, self.mu, Search.of(self))

    @property
    def is_calibrated(self) -> bool:
        return not isinstance(self.gamma, str)

    def measure(self, task: Task, data: Data) -> dict[str, float]:
        return theory(task, data, self.mu, self.gamma)

    def calibrate(self, measured: Mapping[str, Mapping[str, float]]) -> Self:
        """Take γ = 1 / mean(α_i² L_i), or 1 / mean(L_i) if all α_i are 0 and nothing moves."""
        weights = [control.share(self.alpha, name) ** 2 for name in measured]
        return replace(self, gamma=mean_step(measured, weights if any(weights) else None))

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> Reply:
        alpha, start = personal[".alpha"], control.mixture(task, shared, personal)
        after, loss = self._descent(task, start, personal, data, rnd.steps)
        back = torch.where(alpha > 0, 1 / alpha, 0)
        moved = {name: back * value for name, value in displacement(after, pick(start, task.params)).items()}
        kept = {**personal, **pick(after, task.local_buffers)}
        return Reply({**moved, **travelling(task, shared, after)}, {"loss": loss}, kept)

    def _descent(self, task: Task, start: Tree, personal: Tree, data: Data, steps: int) -> tuple[Tree, Tensor]:
        """Do step 4, on the mixture."""
        rate = cast(float, self.gamma) * personal[".alpha"] ** 2
        return local_sgd(task, start, data, steps, rate, self.batch_size, pull=Pull(self.mu))

    def personal_params(self, task: Task, shared: Tree, personal: Tree) -> Tree:
        return control.mixture(task, shared, personal)

    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        after, _ = self._descent(task, control.mixture(task, shared, personal), personal, data, steps)
        return {**personal, **after}
