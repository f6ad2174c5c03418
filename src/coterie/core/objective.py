"""What a model predicts, with its loss and its score: a class, a class at each position of a sequence, or a number.

Shapes: N examples with one answer each, or with one answer at each of T positions. In total there are A answers with K
outputs each.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.nn.functional import cross_entropy

from coterie.core.tree import Tree

SHORT, MANY = 16, 1000
"""A softmax over fewer outputs than SHORT, of at least MANY values, is slow along the last axis of a CPU's memory."""


class Objective(ABC):
    """A kind of prediction, with its loss and its score."""

    score: ClassVar[str]
    """Name of the score. The best value is 1."""
    answers: ClassVar[torch.dtype | None]
    """Type of the targets y; None means the type of the model's parameters."""

    def counted(self, y: Tensor, mask: Tensor) -> Tensor:
        """Return which answers count, in the shape of y. Padding does not count."""
        return mask.reshape(*mask.shape, *[1] * (y.ndim - mask.ndim)).expand(y.shape)

    def mean_loss(self, outputs: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        """Return the mean loss over all answers that count."""
        return self.total_loss(outputs, y, mask) / self.counted(y, mask).sum()

    def total_loss(self, outputs: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        """Return the sum of the losses of all answers that count."""
        each = self.losses(outputs.flatten(0, -2), y.flatten()).reshape(y.shape)
        return torch.where(self.counted(y, mask), each, 0).sum()

    @abstractmethod
    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the loss (A,) of each answer, from outputs (A, K) and targets (A,)."""

    @abstractmethod
    def slope(self, y: Tensor, share: Tensor, num_outputs: int) -> Callable[[Tensor], Tensor]:
        """Return the gradient of Σ share · loss over the outputs as a function of them, (K, A) to (K, A).

        `y` and `share` are (A,). With a leading axis of clients they are (C, 1, A), and the outputs (C, K, A).
        """

    def pair_slope(self, y: Tensor, share: Tensor) -> Callable[[Tensor], Tensor] | None:  # noqa: ARG002
        """Return `slope` for the first of two outputs as a function of their difference, (1, A) to (1, A).

        It is None unless the loss depends on the difference only.
        """
        return None

    @abstractmethod
    def targets(self, y: Tensor, num_outputs: int, dtype: torch.dtype) -> Tensor:
        """Return the targets as rows (..., K), as `residual` takes them."""

    @abstractmethod
    def residual(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the gradient of each answer's loss over its outputs (..., K)."""

    @abstractmethod
    def curvature(self, num_outputs: int) -> float:
        """Return the largest possible eigenvalue of the Hessian of one answer's loss over the outputs."""

    def least_curvature(self) -> float:
        """Return the smallest possible eigenvalue: 0, unless the loss is strongly convex in the outputs."""
        return 0.0

    @abstractmethod
    def scores(self, outputs: Tensor, y: Tensor, mask: Tensor, classes: Tensor) -> Tree:
        """Count all answers (`examples`), right answers (`right`), and those right among `classes` (`restricted`).

        The entry `loss` is the sum of the losses of all answers.
        """


@dataclass(frozen=True)
class Classification(Objective):
    """Cross-entropy, and the share of right answers. A negative y asks for no answer."""

    score = "accuracy"
    answers = torch.int64

    def counted(self, y: Tensor, mask: Tensor) -> Tensor:
        return super().counted(y, mask) & (y >= 0)

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        y = y.clamp(min=0)
        if is_functorch_wrapped_tensor(outputs):  # torch.func takes cross_entropy apart, slowly
            return -outputs.log_softmax(-1).gather(-1, y[..., None])[..., 0]
        if _is_slow(outputs):
            return cross_entropy(outputs.T.contiguous()[None], y[None], reduction="none")[0]
        return cross_entropy(outputs, y, reduction="none")

    def slope(self, y: Tensor, share: Tensor, num_outputs: int) -> Callable[[Tensor], Tensor]:
        labels = (y == torch.arange(num_outputs, device=y.device)[:, None]) * share
        return lambda outputs: outputs.softmax(-2).mul_(share).sub_(labels)

    def pair_slope(self, y: Tensor, share: Tensor) -> Callable[[Tensor], Tensor]:
        first = (y == 0) * share
        return lambda difference: difference.sigmoid().mul_(share).sub_(first)

    def targets(self, y: Tensor, num_outputs: int, dtype: torch.dtype) -> Tensor:
        return (y[..., None] == torch.arange(num_outputs, device=y.device)).to(dtype)

    def residual(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return _softmax(outputs).sub_(targets)

    def curvature(self, num_outputs: int) -> float:
        return 0.5 if num_outputs > 1 else 0.0  # of diag(p) - ppᵀ, reached if two classes have probability 1/2 each

    def scores(self, outputs: Tensor, y: Tensor, mask: Tensor, classes: Tensor) -> Tree:
        counted = self.counted(y, mask)
        among_own = outputs.masked_fill(~classes, -torch.inf)
        right, restricted = (((chosen.argmax(-1) == y) & counted).sum() for chosen in (outputs, among_own))
        loss = self.total_loss(outputs, y, mask)
        return {"examples": counted.sum(), "right": right, "restricted": restricted, "loss": loss}


def _softmax(outputs: Tensor) -> Tensor:
    """Return the softmax over the last axis."""
    if not _is_slow(outputs):
        return outputs.softmax(-1)
    return outputs.movedim(-1, 0).contiguous().softmax(0).movedim(0, -1).contiguous()


def _is_slow(outputs: Tensor) -> bool:
    """Return whether a softmax is faster after a transposition: on a CPU it is slow over a short last axis."""
    return outputs.shape[-1] < SHORT and outputs.numel() >= MANY and outputs.is_cpu


@dataclass(frozen=True)
class Regression(Objective):
    """Mean squared error, and R²: one minus that error divided by the variance of the training targets."""

    score = "R²"
    answers = None
    variance: float = 1.0
    """Variance of the training targets of all clients. One scale for all also serves a client with constant targets."""

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        return (outputs[:, 0] - y) ** 2

    def slope(self, y: Tensor, share: Tensor, num_outputs: int) -> Callable[[Tensor], Tensor]:  # noqa: ARG002
        return lambda outputs: 2 * share * (outputs - y)

    def targets(self, y: Tensor, num_outputs: int, dtype: torch.dtype) -> Tensor:  # noqa: ARG002
        return y[..., None].to(dtype)

    def residual(self, outputs: Tensor, targets: Tensor) -> Tensor:
        g = torch.zeros_like(outputs)
        g[..., :1] = 2 * (outputs[..., :1] - targets)  # only the first output counts
        return g

    def curvature(self, num_outputs: int) -> float:  # noqa: ARG002
        return 2.0

    def least_curvature(self) -> float:
        return 2.0

    def scores(self, outputs: Tensor, y: Tensor, mask: Tensor, classes: Tensor) -> Tree:  # noqa: ARG002
        explained = torch.where(mask, 1 - (outputs[:, 0] - y) ** 2 / self.variance, 0).sum()
        loss = self.total_loss(outputs, y, mask)
        return {"examples": mask.sum(), "right": explained, "restricted": explained, "loss": loss}
