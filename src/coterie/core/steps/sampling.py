"""Minibatches as theory has them: each drawn by itself, with the constants A_i and C_i of expected smoothness.

R. M. Gower et al., "SGD: General Analysis and Improved Rates", ICML 2019. For an unbiased estimate g of ∇f_i(x),
E ||g - ∇f_i(x')||² <= 2 A_i D(x, x') + C_i, where D is the Bregman divergence of f_i.
"""

from collections.abc import Iterator
from typing import Annotated, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from coterie.core.data import Data
from coterie.core.passes import Passes, sgd_passes
from coterie.core.steps.batches import minibatch, num_steps
from coterie.core.steps.convex import answered, curvature
from coterie.core.steps.local import Pull, local_sgd
from coterie.core.task import Task
from coterie.core.tree import Tree
from coterie.errors import UserError
from coterie.settings import Epochs

Sampling = Annotated[
    Literal["shuffle", "independent"],
    Field(
        description='How minibatches are drawn: "shuffle" takes them from a shuffle of all examples, fresh in each '
        'round and epoch; "independent" draws each of them from all examples, as theory assumes.'
    ),
]


def draws(steps: int, data: Data, size: int) -> Iterator[Data]:
    """Yield a batch for each step, drawn without replacement from all examples, independently of the other batches.

    It is the first batch of a shuffle of its own. Size 0, or a size that the examples do not fill, gives all examples.
    """
    epoch = num_steps(Epochs(1), data, size)
    for step in range(steps):
        yield minibatch(data, size, step * epoch)


def independent_sgd(
    task: Task, params: Tree, data: Data, steps: int, rate: Tensor, batch: int, *, pull: Pull, control: Tree
) -> tuple[Tree, Tensor]:
    """Take local steps as `local_sgd` does, but on independent batches. Returns (params, loss at the last gradient)."""
    loss = torch.zeros(())
    for drawn in draws(steps, data, batch):
        params, loss = local_sgd(task, params, drawn, 1, rate, pull=pull, control=control)
    return params, loss


def sampled_passes(size: int, steps: int, batch: int, sampling: str, whole: int = 0) -> Passes:
    """Return the cost of local steps on minibatches, and of `whole` more gradients on all examples.

    Independent batches are never short, unlike the last one of a shuffle.
    """
    passes, most = sgd_passes(size, steps, batch), min(batch, size) or size
    total = (steps * most if sampling == "independent" else steps * passes.batch) + whole * size
    taken = steps + whole
    return Passes(total / max(1, taken), body_forwards=taken, body_backwards=taken, head_steps=taken)


class ExpectedSmoothness(NamedTuple):
    """The constants of the gradient of a minibatch (Assumption 3 in the paper of Scafflix)."""

    A: float
    C: float

    def step(self, epsilon: float, mu_min: float) -> float:
        """Return the step size for accuracy `epsilon`: min(1/A, epsilon mu_min / (2 C)), or 1/A if epsilon is 0."""
        if not (epsilon and self.C):
            return 1 / self.A
        if not mu_min:
            raise UserError("method.epsilon needs strongly convex objectives: set method.mu, or epsilon to 0")
        return min(1 / self.A, epsilon * mu_min / (2 * self.C))


def expected_smoothness(task: Task, at: Tree, data: Data, mu: float, batch: int) -> ExpectedSmoothness:
    """Compute A_i, and C_i for x' = `at`, for batches of a linear model that are drawn without replacement.

    With batches of one, A_i = 2 max_j L_ij, and C_i is twice the variance of the examples' gradients at x'. With all
    examples the gradient is exact: A_i = L_i and C_i = 0.
    """
    L = curvature(task, data, mu).L
    phi, y = answered(task, data)
    n = len(data.mask)
    if batch == 0 or batch >= n:
        return ExpectedSmoothness(L, 0.0)
    if data.y.ndim > 1:
        raise UserError('method.gamma = "1/A" needs data with one answer for each example; set it to a number')
    weight, *bias = task.head
    outputs = at[weight] @ phi.T + (at[bias[0]][:, None] if bias else 0)  # (K, n)
    if bias:
        phi = torch.cat([phi, torch.ones_like(phi[:, :1])], 1)
    G, lengths = task.objective.slope(y, torch.ones_like(outputs[0]), task.num_outputs)(outputs), (phi**2).sum(1)
    variance = float(((G**2).sum(0) * lengths).mean() - ((G @ phi / n) ** 2).sum())  # μx is equal for all examples
    steepest = task.objective.curvature(task.num_outputs) * float(lengths.max()) + mu
    apart = (n - batch) / (batch * (n - 1))  # variance of the mean of a batch, as a share of that of an example
    return ExpectedSmoothness(2 * ((1 - apart) * L + apart * steepest), 2 * apart * max(0.0, variance))
