"""Properties of a client's objective f_i(x) = ℓ_i(x) + (mu/2) ||x||² that theory needs: curvature and minimizer.

The curvature is known for linear models, which have no body to learn and a head of one linear layer. The minimizer can
be computed for any model.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor
from torch.func import grad, vjp

from coterie.core.counting import alike
from coterie.core.data import Data
from coterie.core.steps.batches import minibatch
from coterie.core.steps.local import Pull, local_gradient
from coterie.core.steps.smoothness import hessian_norm, norm
from coterie.core.task import Task
from coterie.core.tree import Tree, descend, pick
from coterie.errors import UserError
from coterie.settings import Rate, Size

Bound = Literal["1/L", "1/trace", "1/hessian"]
"""A step size by the smoothness L: by L itself or by a bound on it, the trace, which are known for linear models; or by
an estimate for any model, the largest eigenvalue of the Hessian where the steps start."""
Step = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Chance = Annotated[float, Field(gt=0, le=1)]
Solver = Literal["gd", "newton"]
CoinChance = Annotated[
    Chance | Literal["optimal"],
    Field(description='Probability of an aggregation after a local step. "optimal" is from theory for linear models.'),
]


class Curvature(NamedTuple):
    """Bounds on the curvature of f_i over all x: no eigenvalue of its Hessian is above L, and none is below mu."""

    L: float
    trace: float
    """A bound on L that needs no eigenvalue. For logistic regression it is Σ_j ||a_j||² / (4N) + mu."""
    mu: float

    def step(self, gamma: float | str) -> float:
        """Return `gamma` itself if it is a number, otherwise the step size from theory."""
        return 1 / (self.L if gamma == "1/L" else self.trace) if isinstance(gamma, str) else gamma


def curvature(task: Task, data: Data, mu: float) -> Curvature:
    """Compute the curvature from the eigenvalues of ΦᵀΦ/N.

    The bound L is tight: logistic regression reaches it where all scores are equal, and linear regression everywhere.
    """
    if task.body or not task.head_is_linear:
        raise UserError(
            "theory gives method.gamma and method.p for linear models only, such as logreg; set method.gamma to a "
            'number or "1/hessian", and method.p to a number'
        )
    phi, _ = answered(task, data)
    if len(task.head) > 1:
        phi = torch.cat([phi, torch.ones_like(phi[:, :1])], 1)  # a bias is one more feature
    N, M = phi.shape
    eigenvalues = torch.linalg.eigvalsh(phi.T @ phi if M <= N else phi @ phi.T) / N
    most, least = task.objective.curvature(task.num_outputs), task.objective.least_curvature()
    L, trace = (max(most * float(value) + mu, 1e-300) for value in (eigenvalues[-1], eigenvalues.sum()))
    return Curvature(L, trace, least * max(0.0, float(eigenvalues[0])) * (M <= N) + mu)


def answered(task: Task, data: Data) -> tuple[Tensor, Tensor]:
    """Return the features (A, M) and the targets (A,) of all answers that count, for a model without a body."""
    features, _, _ = task.body_vjp(task.initial, data.x)
    counted = task.objective.counted(data.y, data.mask).flatten()
    return features.flatten(0, -2)[counted], data.y.flatten()[counted]


StepSizes = Annotated[
    Step | Bound | dict[str, Step],
    Field(
        description="Learning rate: one number for all clients, one by client name, or from the data of each client: "
        '"1/L" and "1/trace" are from theory for linear models, "1/hessian" is an estimate for any model.'
    ),
]


def step_size(gamma: float | str, task: Task, data: Data, mu: float, at: Tree) -> float:
    """Return `gamma` itself if it is a number; otherwise the step size for the client's data, for steps from `at`."""
    if gamma == "1/hessian":
        return 1 / max(hessian_norm(task, at, data, mu), 1e-30)
    return curvature(task, data, mu).step(gamma) if isinstance(gamma, str) else gamma


def best_p(products: Iterable[float]) -> float:
    """Return sqrt(min gamma_i mu_i), the best probability of communication in the theory of Scaffnew."""
    if not (least := min(products)) > 0:
        raise UserError(
            'method.p = "optimal" is sqrt(min gamma_i mu_i), which is 0 here: set method.mu, or a number for method.p'
        )
    return min(1.0, math.sqrt(least))


def theory(
    task: Task, data: Data, mu: float, gamma: float | str | Mapping[str, float], p: float | str = 1.0
) -> dict[str, float]:
    """Return the numbers by which a client helps to calibrate a method: its strong convexity and its step size.

    Step sizes that are given by client name are known already, and are left out. The strong convexity is needed for the
    best p only, and is left out if the step size is an estimate.
    """
    if gamma == "1/hessian" and p != "optimal":
        return {"step": step_size(gamma, task, data, mu, task.initial)}
    if gamma in ("1/hessian", "adaptive"):
        raise UserError(
            f'method.p = "optimal" needs step sizes from theory, and method.gamma = "{gamma}" is an estimate: set '
            'method.gamma to "1/L" (linear models only), or method.p to a number'
        )
    own = curvature(task, data, mu)
    return {"mu": own.mu, **({} if isinstance(gamma, Mapping) else {"step": own.step(gamma)})}


def mean_step(measured: Mapping[str, Mapping[str, float]], weights: Sequence[float] | None = None) -> float:
    """Return 1 / (mean of the L_i), the step size for the mean of the clients' objectives.

    `weights` multiply the L_i: α_i² if the objectives are f_i(α_i x + ...).
    """
    inverse = [1 / client["step"] for client in measured.values()]
    return len(inverse) / sum(w * each for w, each in zip(weights or [1.0] * len(inverse), inverse, strict=True))


OptimumSolver = Annotated[
    Solver, Field(description='Solver for x_i*: "gd" is gradient descent, "newton" is for convex problems.')
]
OptimumRate = Annotated[Step | Bound, Field(description="Learning rate of gradient descent to x_i*.")]
OptimumTolerance = Annotated[
    Rate, Field(description="The search for x_i* ends at this norm of the gradient, unless it uses minibatches.")
]
OptimumEpochs = Annotated[
    Size, Field(description="Maximum number of passes over the client's examples in the search for x_i*.")
]
OptimumBatch = Annotated[
    Size, Field(description="Examples per step of the search for x_i*; 0 uses all examples of the client.")
]
OptimumStart = Annotated[
    float, Field(description="The search for x_i* starts from this multiple of the initial model.")
]


class Search(NamedTuple):
    """How a client searches for its own optimum."""

    solver: Solver
    """Gradient descent, or Newton's method for convex f_i, which reaches the precision of the number type."""
    rate: float | Bound
    """Learning rate of gradient descent."""
    tolerance: float
    """The search ends when ||∇f_i|| is not larger. Not used with minibatches."""
    epochs: int
    """Maximum number of passes over the examples. A Newton step counts as one."""
    batch: int = 0
    """Examples per step of gradient descent; 0 means all."""
    start: float = 1.0
    """The search starts from this multiple of the initial model."""

    @classmethod
    def of(cls, method: object) -> "Search":
        """Return the search that a method's fields `optimum_...` describe."""
        return cls(*(getattr(method, f"optimum_{name}") for name in cls._fields))


def minimum(task: Task, initial: Tree, data: Data, mu: float, how: Search) -> tuple[Tree, int]:
    """Search for the minimizer of f_i. Returns (x_i*, number of steps).

    The search also ends if it leaves the finite numbers.
    """
    over, N = task.params, len(data.mask)
    params = {**initial, **{name: how.start * initial[name] for name in over}}
    if how.solver == "newton":
        return _newton(task, params, data, mu, how.tolerance, how.epochs)
    whole = how.batch == 0 or how.batch >= N
    epoch = 1 if whole else math.ceil(N / how.batch)
    steps = how.epochs * epoch
    rate = step_size(how.rate, task, data, mu, params) if steps else 0.0
    gradient = _gradient(task, data, mu, 0 if whole else how.batch)
    each, last = alike(gradient), alike(gradient)  # the last batch of an epoch may be short
    for step in range(steps):
        g, buffers = (each if (step + 1) % epoch else last)(params, step)
        if whole and not norm(g) > how.tolerance:  # nor is NaN
            return params, step
        params = {**params, **descend(pick(params, over), g, rate), **buffers}
    return params, steps


def _gradient(task: Task, data: Data, mu: float, batch: int) -> Callable[[Tree, int], tuple[Tree, Tree]]:
    """Return (∇f_i, buffers) as a function of the model and of the step.

    For a linear model on all examples the gradient is known: the gradient over the outputs, times the features. These
    are computed once and stored as (M, A).
    """
    if batch or task.body or task.buffers or task.is_random or not task.head_is_linear:

        def found(params: Tree, step: int) -> tuple[Tree, Tree]:
            g, _, buffers = local_gradient(task, params, minibatch(data, batch, step), over, Pull(mu))
            return g, buffers

        over = task.params
        return found

    (weight, *bias), (phi, y) = task.head, answered(task, data)
    phi, share = phi.T.contiguous(), phi.new_full((len(phi),), 1 / len(phi))
    slope = task.objective.slope(y, share, task.num_outputs)

    def known(params: Tree, step: int) -> tuple[Tree, Tree]:  # noqa: ARG001 - all steps are alike
        outputs = params[weight] @ phi
        G = slope(outputs + params[bias[0]][:, None] if bias else outputs)  # (K, A)
        g = {weight: G @ phi.T, **{name: G.sum(1) for name in bias}}
        return {name: value + mu * params[name] for name, value in g.items()}, {}

    return known


def _newton(task: Task, start: Tree, data: Data, mu: float, tolerance: float, most: int) -> tuple[Tree, int]:
    """Run Newton's method with step halving. Conjugate gradients solve its linear systems, so no Hessian is formed."""
    at = pick(start, task.params)

    def tree(w: Tensor) -> Tree:
        parts = torch.split(w, [value.numel() for value in at.values()])
        return {name: part.view_as(value) for (name, value), part in zip(at.items(), parts, strict=True)}

    def f(w: Tensor) -> Tensor:
        return task.loss({**start, **tree(w)}, data)[0] + mu / 2 * w @ w

    def slope(w: Tensor) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor]]]:
        return vjp(grad(f), w)  # type: ignore[return-value] # the second is the product of the Hessian with a vector

    def times(v: Tensor) -> Tensor:
        return product(v)[0]

    value, slope, hessian = alike(f), alike(slope), alike(times)
    w = torch.cat([each.flatten() for each in at.values()])
    for step in range(most):
        g, product = slope(w)
        if not g.norm() > tolerance:
            return {**start, **tree(w)}, step
        d = _solved(hessian, g)
        t, now = 1.0, value(w)
        slack = 4 * torch.finfo(w.dtype).eps * now.abs()  # for differences below rounding
        while t > 1e-9 and not value(w - t * d) <= now - 1e-4 * t * (g @ d) + slack:
            t /= 2
        w = w - t * d
    return {**start, **tree(w)}, most


def _solved(product: Callable[[Tensor], Tensor], g: Tensor) -> Tensor:
    """Solve H d = g as closely as Newton's method can use: to a tenth of ||g||, or to ||g||² if that is less."""
    d, residual = torch.zeros_like(g), g
    direction, left = residual, residual @ residual
    enough = float(left) * min(0.1, float(g.norm())) ** 2
    for _ in range(10 * len(g)):
        image = product(direction)
        bend = direction @ image
        if not bend > 0:
            break
        d = d + left / bend * direction
        residual = residual - left / bend * image
        left, before = residual @ residual, left
        if left <= enough:
            break
        direction = residual + left / before * direction
    return d if d.any() else g
