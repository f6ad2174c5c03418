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
Deviation: the paper has τ = 1. More steps are those of FedAvg on (FLIX), and drift as they do.
Step 4 is done on x̃_i, which moves by −γ α_i² ∇ f_i(x̃_i): α_i = 0 so needs no exception, but in 5.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from coterie.core.method import Client, Data, Length, Method, Passes, Rate, Round, Size, Task, Tree, settings
from coterie.core.steps import Pull, control, local_sgd, sgd_passes, travelling
from coterie.core.steps.control import Mixing
from coterie.core.steps.convex import Bound, Search, Solver, Step, curvature
from coterie.core.tree import displacement, pick, shift


@settings
class FLIX(Method):
    """Everyone's model is a mixture of a shared one with its own optimum; descent on what the mixtures lose."""

    alpha: Mixing | dict[str, Mixing] = 0.5
    """The share of the shared model in the client's; one for all, or one for each client by name."""
    tau: Length = 1
    """Local steps, or "2 epochs" of the client's examples."""
    gamma: Step | Bound = 0.5
    """Rate of the steps; "1/L" and "1/trace" are theory's for linear models, from the mean of α² L_i."""
    mu: Rate = 0.0
    """μ: l2 regularization of every parameter."""
    batch_size: Size = 0
    """Examples a step; 0 is all of the client's."""
    optimum_solver: Solver = "gd"
    """By what x_i* is found: gradient descent, or Newton's method, for convex problems."""
    optimum_rate: Step | Bound = 0.1
    """Rate of that descent."""
    optimum_tolerance: Rate = 1e-6
    """It ends where the norm of the gradient is not above this, unless it goes by minibatches."""
    optimum_epochs: Size = 50
    """Passes over the client's examples at the most; without minibatches each is a step."""
    optimum_batch: Size = 0
    """Examples a step of that descent; 0 is all of the client's."""
    optimum_start: float = 1.0
    """It starts from so many times the initial model."""

    def init_personal(self, task: Task, client: Client) -> Tree:
        return {**task.personal_buffers(), **control.mixing(task, self.alpha, client)}

    def settle(self, task: Task, personal: Tree, data: Data) -> Tree:
        how = Search(*(getattr(self, f"optimum_{name}") for name in Search._fields))
        return control.with_optimum(task, personal, data, self.mu, how)

    def tuned(self, task: Task, clients: Iterable[Data]) -> "FLIX":
        if not isinstance(self.gamma, str):
            return self
        inverse = [1 / curvature(task, data, self.mu).step(self.gamma) for data in clients]
        # Not told whose data are whose, we take the largest alpha for all: a bound still.
        alpha = max(self.alpha.values(), default=1.0) if isinstance(self.alpha, dict) else self.alpha
        return replace(self, gamma=len(inverse) / sum(inverse) / (alpha**2 or 1.0))

    def plan(self, rnd: Round) -> Round:
        return rnd.announce(steps=self.tau)

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> tuple[Tree, Tree]:
        alpha, over, start = personal["client.alpha"], task.body + task.head, control.mixture(task, shared, personal)
        after, loss = self._descent(task, start, personal, data, rnd.steps)
        moved = displacement(after, pick(start, over))
        back = torch.where(alpha > 0, 1 / alpha, 0)
        message = {**{name: back * value for name, value in moved.items()}, **travelling(task, shared, after)}
        return {**message, "loss": loss}, {**personal, **pick(after, task.local_buffers)}

    def _descent(self, task: Task, start: Tree, personal: Tree, data: Data, steps: int) -> tuple[Tree, Tensor]:
        """Step 4, on the mixture."""
        rate = cast(float, self.gamma) * personal["client.alpha"] ** 2
        return local_sgd(task, start, data, steps, rate, self.batch_size, pull=Pull(self.mu))

    def passes(self, size: int, rnd: Round) -> Passes:
        return sgd_passes(size, rnd.steps, self.batch_size)

    def weights(self, sizes: Tensor, rnd: Round) -> Tensor:
        return torch.ones_like(sizes) / len(sizes)

    def server_update(self, task: Task, shared: Tree, memory: Tree, update: Tree, rnd: Round) -> tuple[Tree, Tree]:
        return shift(shared, update), memory

    def local_shared(self, shared: Tree, message: Tree) -> Tree:
        return shift(shared, message)

    def personal_params(self, task: Task, shared: Tree, personal: Tree) -> Tree:
        return control.mixture(task, shared, personal)

    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        after, _ = self._descent(task, control.mixture(task, shared, personal), personal, data, steps)
        return {**personal, **after}
