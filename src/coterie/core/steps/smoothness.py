"""Estimates of the smoothness L_i of a client's objective f_i(x) = ℓ_i(x) + (mu/2) ||x||², for any model.

Both are about a part of the space only: the Hessian at one point, and the gradients at two points. For quadratic f_i
the first is L_i itself. Neither is ever larger than L_i, up to rounding.
"""

import math
from contextlib import nullcontext

import torch
from torch import Tensor

from coterie.core.counting import alike
from coterie.core.data import Data
from coterie.core.steps.local import Pull, local_gradient
from coterie.core.task import Task
from coterie.core.tree import Tree, displacement, pick
from coterie.streams import torch_seeded

MOST = 200
"""Maximum number of steps of power iteration."""
SETTLED = 1e-5
"""Relative change of the estimate at which power iteration ends."""


def hessian_norm(task: Task, at: Tree, data: Data, mu: float) -> float:
    """Return the largest absolute eigenvalue of the Hessian of f_i at a point, by power iteration.

    The Hessian is never formed: each step is one product of it with a vector. All products see the same dropout.
    """
    stream = int(data.stream)

    def times(v: Tree) -> Tree:
        with torch_seeded(stream) if task.is_random else nullcontext():
            return {name: Hv + mu * v[name] for name, Hv in task.hessian_product(at, data, task.params, v).items()}

    times = alike(times)
    with torch_seeded(stream):
        v = {name: torch.randn_like(value) for name, value in pick(at, task.params).items()}
    v, found = _scaled(v, 1 / norm(v)), 0.0
    for _ in range(MOST):
        v, before = times(v), found
        found = norm(v)
        if not found > 0 or abs(found - before) <= SETTLED * found:
            break
        v = _scaled(v, 1 / found)
    return found


def secant(task: Task, start: Tree, end: Tree, data: Data, mu: float) -> Tensor:
    """Return ||∇f_i(end) - ∇f_i(start)|| / ||end - start||. It runs under vmap.

    It is 0 if the models are so close that the difference of the gradients would be mostly rounding.
    """
    there, here = (local_gradient(task, at, data, task.params, Pull(mu))[0] for at in (end, start))
    risen, moved = _squares(displacement(there, here)), _squares(displacement(end, pick(start, task.params)))
    return torch.where(moved > torch.finfo(moved.dtype).eps * _squares(pick(end, task.params)), risen / moved, 0).sqrt()


def norm(tree: Tree) -> float:
    """Return the Euclidean norm of all values together."""
    return math.hypot(*(float(torch.linalg.vector_norm(value)) for value in tree.values()))


def _squares(tree: Tree) -> Tensor:
    return torch.stack([(value**2).sum() for value in tree.values()]).sum()


def _scaled(tree: Tree, by: float) -> Tree:
    return {name: by * value for name, value in tree.items()}
