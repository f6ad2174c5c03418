"""The problem of section 3.1 of the Scafflix paper in NumPy, and its solution: what curves are measured against.

    f_i(v) = (1/n_i) Σ_j log(1 + exp(-b_j vᵀ a_j)) + (mu/2) ||v||²                     a_j ends with a 1, the intercept
    f̃(v) = (1/n) Σ_i f_i(alpha v + (1 - alpha) v_i*)                                                             (FLIX)

Methods train two outputs w = (-v/2, v/2) instead. Then the cross-entropy is the same, and its gradient over the second
output is the one over v, over the first its negative. ||w||² = ||v||²/2, so that 2 mu in the place of mu makes the
objectives equal. w stays of that form under every step, and v moves by twice what the second output does: step size
gamma there is 2 gamma here, all curvatures there are twice those here, and 1/L, sqrt(mu/L) and control variates agree.
Squared norms of gradients are twice as large there.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.data.federation import Federation

Vector = NDArray[np.float64]
TOLERANCE = 1e-14
"""Of the gradient's norm at a solution."""


@dataclass(frozen=True)
class Logistic:
    """f_i."""

    A: Vector
    b: Vector
    """1 or -1."""
    mu: float

    def at(self, v: Vector) -> tuple[float, Vector]:
        """(value, gradient)"""
        margin = self.b * (self.A @ v)
        wrong = (1 - np.tanh(margin / 2)) / 2  # 1 / (1 + exp(margin)), which cannot overflow
        value = float(np.logaddexp(0, -margin).mean() + self.mu / 2 * v @ v)
        return value, self.mu * v - self.A.T @ (self.b * wrong) / len(self.b)

    def hessian(self, v: Vector) -> Vector:
        bend = (1 - np.tanh(self.A @ v / 2) ** 2) / 4
        return self.A.T @ (bend[:, None] * self.A) / len(self.b) + self.mu * np.eye(len(v))

    def minimum(self) -> Vector:
        return newton(self.at, self.hessian, np.zeros(self.A.shape[1]), TOLERANCE)


@dataclass(frozen=True)
class Mixtures:
    """f̃."""

    clients: Sequence[Logistic]
    alpha: float
    anchors: Vector
    """v_i*, or what clients have in its place: (n, d)."""

    def at(self, v: Vector) -> tuple[float, Vector]:
        each = [f.at(x) for f, x in zip(self.clients, self._models(v), strict=True)]
        return float(np.mean([value for value, _ in each])), self.alpha * np.mean([g for _, g in each], axis=0)

    def hessian(self, v: Vector) -> Vector:
        each = [f.hessian(x) for f, x in zip(self.clients, self._models(v), strict=True)]
        mean: Vector = np.mean(each, axis=0)
        return self.alpha**2 * mean

    def minimum(self) -> Vector:
        start = self.anchors.mean(axis=0)
        return newton(self.at, self.hessian, start, TOLERANCE * self.alpha)

    def _models(self, v: Vector) -> Vector:
        models: Vector = self.alpha * v + (1 - self.alpha) * self.anchors
        return models


def newton(
    at: Callable[[Vector], tuple[float, Vector]], hessian: Callable[[Vector], Vector], v: Vector, tolerance: float
) -> Vector:
    """Where the gradient's norm is at most `tolerance`: Newton's method with halved steps."""
    for _ in range(100):
        value, g = at(v)
        if np.linalg.norm(g) <= tolerance:
            return v
        d, t = np.linalg.solve(hessian(v), g), 1.0
        while t > 1e-9 and at(v - t * d)[0] > value + 1e-15 * abs(value):
            t /= 2
        v = v - t * d
    raise ArithmeticError(f"Newton's method ends with a gradient of {np.linalg.norm(at(v)[1]):.1e}")


def logistics(federation: Federation, mu: float) -> list[Logistic]:
    """Of each client of a federation with two classes, the second one positive."""
    found = []
    for client in range(len(federation.ids)):
        rows = federation.splits["train"].row(client)
        x = federation.x[rows].double().numpy()
        b = np.where(federation.y[rows].numpy() == 1, 1.0, -1.0)
        found.append(Logistic(np.column_stack([x, np.ones(len(x))]), b, mu))
    return found


def one_vector(weight: Any, bias: Any) -> Vector:
    """v of two outputs, which are tensors."""
    return np.append((weight[1] - weight[0]).numpy(), float(bias[1] - bias[0]))
