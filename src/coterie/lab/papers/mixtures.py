"""The problem of section 3.1 of the Scafflix paper in NumPy, and its exact solution, which curves are compared with.

    f_i(v) = (1/n_i) Σ_j log(1 + exp(-b_j vᵀ a_j)) + (mu/2) ||v||²                     the last entry of a_j is 1
    f̃(v) = (1/n) Σ_i f_i(alpha v + (1 - alpha) v_i*)                                                             (FLIX)

The methods of Coterie train a model with two outputs w = (-v/2, v/2) instead. Its cross-entropy is the same. The
gradient with respect to the second output is the gradient with respect to v, and that of the first output is its
negative. Since ||w||² = ||v||²/2, the objectives are equal if the methods use 2 mu instead of mu. Every step keeps w in
this form, and v moves by twice as much as the second output. A step size gamma of a method therefore corresponds to
2 gamma here, and all curvatures of the methods are twice those here. 1/L, sqrt(mu/L) and control variates agree.
Squared norms of gradients are twice as large for the methods.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.data.federation import Federation

Vector = NDArray[np.float64]
TOLERANCE = 1e-14
"""Largest norm of the gradient at a solution."""


@dataclass(frozen=True)
class Logistic:
    """Objective f_i of one client."""

    A: Vector
    b: Vector
    """Labels, 1 or -1."""
    mu: float

    def at(self, v: Vector) -> tuple[float, Vector]:
        """Return value and gradient at v."""
        margin = self.b * (self.A @ v)
        wrong = (1 - np.tanh(margin / 2)) / 2  # 1 / (1 + exp(margin)), without overflow
        value = float(np.logaddexp(0, -margin).mean() + self.mu / 2 * v @ v)
        return value, self.mu * v - self.A.T @ (self.b * wrong) / len(self.b)

    def hessian(self, v: Vector) -> Vector:
        """Return the Hessian at v."""
        bend = (1 - np.tanh(self.A @ v / 2) ** 2) / 4
        return self.A.T @ (bend[:, None] * self.A) / len(self.b) + self.mu * np.eye(len(v))

    def minimum(self) -> Vector:
        """Return the minimum."""
        return newton(self.at, self.hessian, np.zeros(self.A.shape[1]), TOLERANCE)


@dataclass(frozen=True)
class Mixtures:
    """Objective f̃ of FLIX, over all clients."""

    clients: Sequence[Logistic]
    alpha: float
    anchors: Vector
    """Local optima v_i*, or the points that clients use instead of them: (n, d)."""

    def at(self, v: Vector) -> tuple[float, Vector]:
        """Return value and gradient at v."""
        each = [f.at(x) for f, x in zip(self.clients, self._models(v), strict=True)]
        return float(np.mean([value for value, _ in each])), self.alpha * np.mean([g for _, g in each], axis=0)

    def hessian(self, v: Vector) -> Vector:
        """Return the Hessian at v."""
        each = [f.hessian(x) for f, x in zip(self.clients, self._models(v), strict=True)]
        mean: Vector = np.mean(each, axis=0)
        return self.alpha**2 * mean

    def minimum(self) -> Vector:
        """Return the minimum."""
        start = self.anchors.mean(axis=0)
        return newton(self.at, self.hessian, start, TOLERANCE * self.alpha)

    def _models(self, v: Vector) -> Vector:
        models: Vector = self.alpha * v + (1 - self.alpha) * self.anchors
        return models


def newton(
    at: Callable[[Vector], tuple[float, Vector]], hessian: Callable[[Vector], Vector], v: Vector, tolerance: float
) -> Vector:
    """Find a point where the norm of the gradient is at most `tolerance`, by Newton's method with step halving."""
    for _ in range(100):
        value, g = at(v)
        if np.linalg.norm(g) <= tolerance:
            return v
        d, t = np.linalg.solve(hessian(v), g), 1.0
        while t > 1e-9 and at(v - t * d)[0] > value + 1e-15 * abs(value):
            t /= 2
        v = v - t * d
    raise ArithmeticError(
        f"Newton's method did not converge: the norm of the gradient is {np.linalg.norm(at(v)[1]):.1e}"
    )


def logistics(federation: Federation, mu: float) -> list[Logistic]:
    """Return the objective of each client of a federation with two classes. The second class is positive."""
    found = []
    for client in range(len(federation.ids)):
        rows = federation.splits["train"].row(client)
        x = federation.x[rows].double().numpy()
        b = np.where(federation.y[rows].numpy() == 1, 1.0, -1.0)
        found.append(Logistic(np.column_stack([x, np.ones(len(x))]), b, mu))
    return found


def one_vector(weight: Any, bias: Any) -> Vector:
    """Return v from the weight and the bias of a model with two outputs."""
    return np.append((weight[1] - weight[0]).numpy(), float(bias[1] - bias[0]))
