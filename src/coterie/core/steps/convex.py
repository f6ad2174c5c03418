"""What theory asks of a client's objective f_i(x) = ℓ_i(x) + (mu/2) ||x||²: its curvature, and where it is least.

Constants are known for linear models: no body to learn, a head of one linear layer. The minimum can be sought for any.
"""

import math
from collections.abc import Callable, Iterable
from typing import Annotated, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor
from torch.func import grad, vjp

from coterie.core.counting import alike
from coterie.core.data import Data
from coterie.core.steps import Pull, local_gradient, minibatch
from coterie.core.task import Task
from coterie.core.tree import Tree, descend, pick
from coterie.errors import UserError

Bound = Literal["1/L", "1/trace"]
"""A step size by theory: L as it is, or by the bound that has the trace in the place of the largest eigenvalue."""
Step = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Chance = Annotated[float, Field(gt=0, le=1)]
Solver = Literal["gd", "newton"]


class Curvature(NamedTuple):
    """Of f_i, over all x: no eigenvalue of its Hessian is above L, none below mu."""

    L: float
    trace: float
    """The bound on L that needs no eigenvalue: of logistic regression, Σ_j ||a_j||² / (4N) + mu."""
    mu: float

    def step(self, gamma: float | Bound) -> float:
        """A step size that is given, or asked of theory."""
        return 1 / (self.L if gamma == "1/L" else self.trace) if isinstance(gamma, str) else gamma


def curvature(task: Task, data: Data, mu: float) -> Curvature:
    """From the eigenvalues of ΦᵀΦ/N: exact, in that for logistic regression the bound L is reached where all scores
    are even, and for linear regression everywhere."""
    if task.body or not task.head_is_linear:
        raise UserError("theory's gamma and p are known for linear models only, like logreg; give the method numbers")
    phi, _ = _answered(task, data)
    if len(task.head) > 1:
        phi = torch.cat([phi, torch.ones_like(phi[:, :1])], 1)  # a bias is one more feature
    N, M = phi.shape
    eigenvalues = torch.linalg.eigvalsh(phi.T @ phi if M <= N else phi @ phi.T) / N
    most, least = task.objective.curvature(task.num_outputs), task.objective.least_curvature()
    L, trace = (max(most * float(value) + mu, 1e-300) for value in (eigenvalues[-1], eigenvalues.sum()))
    return Curvature(L, trace, least * max(0.0, float(eigenvalues[0])) * (M <= N) + mu)


def _answered(task: Task, data: Data) -> tuple[Tensor, Tensor]:
    """The features (A, M) and the targets (A,) of all answers that count, where there is no body to learn."""
    features, _, _ = task.body_vjp(task.initial, data.x)
    counted = task.objective.counted(data.y, data.mask).flatten()
    return features.flatten(0, -2)[counted], data.y.flatten()[counted]


def step_size(gamma: float | Bound, task: Task, data: Data, mu: float) -> float:
    """The same, for any model if it is given."""
    return curvature(task, data, mu).step(gamma) if isinstance(gamma, str) else gamma


def best_p(products: Iterable[float]) -> float:
    """sqrt(min gamma_i mu_i): how often to communicate, by the theory of Scaffnew and its heirs."""
    if not (least := min(products)) > 0:
        raise UserError(
            'method.p = "optimal" is sqrt(min gamma_i mu_i), here 0: set method.mu, or a number for method.p'
        )
    return min(1.0, math.sqrt(least))


class Search(NamedTuple):
    """How a client looks for its own optimum."""

    solver: Solver
    """Gradient descent; or Newton's method, for convex f_i: it reaches the limits of the number type."""
    rate: float | Bound
    """Of gradient descent."""
    tolerance: float
    """It ends where ||∇f_i|| is no larger; unless by minibatches."""
    epochs: int
    """Passes over the examples at the most; a step of Newton's counts as one."""
    batch: int = 0
    """Examples a step of gradient descent; 0 is all."""
    start: float = 1.0
    """So many times the initial model."""


def minimum(task: Task, initial: Tree, data: Data, mu: float, how: Search) -> tuple[Tree, int]:
    """(x_i*, steps). The search also ends at what is not finite."""
    over, N = task.body + task.head, len(data.mask)
    params = {**initial, **{name: how.start * initial[name] for name in over}}
    if how.solver == "newton":
        return _newton(task, params, data, mu, how.tolerance, how.epochs)
    whole = how.batch == 0 or how.batch >= N
    steps = how.epochs * (1 if whole else math.ceil(N / how.batch))
    rate = step_size(how.rate, task, data, mu) if steps else 0.0
    gradient = alike(_gradient(task, data, mu, 0 if whole else how.batch))
    for step in range(steps):
        g, buffers = gradient(params, step)
        if whole and not _norm(g) > how.tolerance:  # nor is NaN
            return params, step
        params = {**params, **descend(pick(params, over), g, rate), **buffers}
    return params, steps


def _gradient(task: Task, data: Data, mu: float, batch: int) -> Callable[[Tree, int], tuple[Tree, Tree]]:
    """(∇f_i, buffers) as a function of the model and of the step. Of a linear model on all examples the gradient is
    known: that over the outputs, times the features, which are computed once and lie as (M, A)."""
    if batch or task.body or task.buffers or task.is_random or not task.head_is_linear:

        def found(params: Tree, step: int) -> tuple[Tree, Tree]:
            g, _, buffers = local_gradient(task, params, minibatch(data, batch, step), over, Pull(mu))
            return g, buffers

        over = task.body + task.head
        return found

    (weight, *bias), (phi, y) = task.head, _answered(task, data)
    phi, share = phi.T.contiguous(), phi.new_full((len(phi),), 1 / len(phi))
    slope = task.objective.slope(y, share, task.num_outputs)

    def known(params: Tree, step: int) -> tuple[Tree, Tree]:  # noqa: ARG001 - they are all alike
        outputs = params[weight] @ phi
        G = slope(outputs + params[bias[0]][:, None] if bias else outputs)  # (K, A)
        g = {weight: G @ phi.T, **{name: G.sum(1) for name in bias}}
        return {name: value + mu * params[name] for name, value in g.items()}, {}

    return known


def _norm(tree: Tree) -> float:
    return math.hypot(*(float(torch.linalg.vector_norm(value)) for value in tree.values()))


def _newton(task: Task, start: Tree, data: Data, mu: float, tolerance: float, most: int) -> tuple[Tree, int]:
    """Newton's method with halved steps; its linear systems by conjugate gradients, so that no Hessian is formed."""
    at = pick(start, task.body + task.head)

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
        slack = 4 * torch.finfo(w.dtype).eps * now.abs()  # of a difference that rounding has eaten
        while t > 1e-9 and not value(w - t * d) <= now - 1e-4 * t * (g @ d) + slack:
            t /= 2
        w = w - t * d
    return {**start, **tree(w)}, most


def _solved(product: Callable[[Tensor], Tensor], g: Tensor) -> Tensor:
    """d with H d = g, as closely as Newton's method can use: up to a tenth of ||g||, or ||g||² where that is less."""
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
