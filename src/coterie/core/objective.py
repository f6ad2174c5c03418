"""What is asked of a model, and what its answers are worth: a class, a class at each position of a sequence, a number.

Shapes: N examples with one answer each, or with one at each of T positions: A answers in all, of K outputs each.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from coterie.core.tree import Tree


class Objective(ABC):
    score: ClassVar[str]
    """What the score is called; 1 is the best there is."""
    answers: ClassVar[torch.dtype | None]
    """Of y; None is that of the model's parameters."""

    def counted(self, y: Tensor, mask: Tensor) -> Tensor:
        """Which answers count: those of the examples that are no padding. As y."""
        return mask.reshape(*mask.shape, *[1] * (y.ndim - mask.ndim)).expand(y.shape)

    def mean_loss(self, outputs: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        """Over all answers that count."""
        counted = self.counted(y, mask)
        each = self.losses(outputs.flatten(0, -2), y.flatten()).reshape(y.shape)
        return torch.where(counted, each, 0).sum() / counted.sum()

    @abstractmethod
    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """(A, K), (A,) to (A,)"""

    @abstractmethod
    def slope(self, y: Tensor, share: Tensor, num_outputs: int) -> Callable[[Tensor], Tensor]:
        """The gradient of Σ share · loss over the outputs, (K, A) to (K, A), as a function of them."""

    @abstractmethod
    def curvature(self, num_outputs: int) -> float:
        """The largest eigenvalue that the Hessian of one answer's loss over the outputs can have."""

    def least_curvature(self) -> float:
        """The smallest: 0, unless the loss is strongly convex in the outputs."""
        return 0.0

    @abstractmethod
    def scores(self, outputs: Tensor, y: Tensor, mask: Tensor, classes: Tensor) -> Tree:
        """How many answers there are, what they are worth, and what they were if only `classes` could be chosen."""


@dataclass(frozen=True)
class Classification(Objective):
    """Cross-entropy, and the share of right answers. Where y is negative there is nothing to answer."""

    score = "accuracy"
    answers = torch.int64

    def counted(self, y: Tensor, mask: Tensor) -> Tensor:
        return super().counted(y, mask) & (y >= 0)

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(outputs, y.clamp(min=0), reduction="none")

    def slope(self, y: Tensor, share: Tensor, num_outputs: int) -> Callable[[Tensor], Tensor]:
        labels = (y == torch.arange(num_outputs, device=y.device)[:, None]) * share
        return lambda outputs: outputs.softmax(0) * share - labels

    def curvature(self, num_outputs: int) -> float:
        return 0.5 if num_outputs > 1 else 0.0  # of diag(p) - ppᵀ: where two classes have one half each

    def scores(self, outputs: Tensor, y: Tensor, mask: Tensor, classes: Tensor) -> Tree:
        counted = self.counted(y, mask)
        among_own = outputs.masked_fill(~classes, -torch.inf)
        right, restricted = (((chosen.argmax(-1) == y) & counted).sum() for chosen in (outputs, among_own))
        return {"examples": counted.sum(), "right": right, "restricted": restricted}


@dataclass(frozen=True)
class Regression(Objective):
    """Mean squared error, and R²: one minus that error in units of the variance of the training targets."""

    score = "R²"
    answers = None
    variance: float = 1.0
    """Of the training targets of all clients: one scale for everyone, and a client that is all alike has one too."""

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        return (outputs[:, 0] - y) ** 2

    def slope(self, y: Tensor, share: Tensor, num_outputs: int) -> Callable[[Tensor], Tensor]:  # noqa: ARG002
        return lambda outputs: 2 * share * (outputs - y)

    def curvature(self, num_outputs: int) -> float:  # noqa: ARG002
        return 2.0

    def least_curvature(self) -> float:
        return 2.0

    def scores(self, outputs: Tensor, y: Tensor, mask: Tensor, classes: Tensor) -> Tree:  # noqa: ARG002
        explained = torch.where(mask, 1 - (outputs[:, 0] - y) ** 2 / self.variance, 0).sum()
        return {"examples": mask.sum(), "right": explained, "restricted": explained}
