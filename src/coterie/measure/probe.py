"""Measurements of a task: the cost of its passes, and what an engine must know about its model."""

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from coterie.core.counting import CountBytes, CountFlops
from coterie.core.data import Data, Inputs
from coterie.core.method import Calibrates, Client, Method, Prepares, Round
from coterie.core.steps import gradient
from coterie.core.task import Task
from coterie.core.tree import Tree, moved, pick, stack
from coterie.streams import torch_seeded


class Flops(NamedTuple):
    """Floating-point operations for one example: matrix products and convolutions, as PyTorch counts them."""

    body_forward: float
    body_backward: float
    """Backward pass to the parameters of the body, through the head."""
    head_step: float
    """Forward and backward pass of the head alone, on given features."""
    frozen_head: float
    """Forward and backward pass of the head, without the gradient over its parameters."""
    head_forward: float
    feature_product: float
    """Product of the features with one vector; 0 unless the head is linear."""


@dataclass(frozen=True)
class Counted:
    """Counted cost of one local update."""

    flops: int
    body_forwards: int
    body_backwards: int


class Probe:
    """Measurements of one task. Each is taken once and remembered."""

    def __init__(self, task: Task) -> None:
        self._task = task

    # -- what an engine must know

    @cached_property
    def runs_batched(self) -> bool:
        """Whether torch.func.vmap can run a training step and an evaluation for two clients at once."""
        task = self._task
        if task.chain is not None:  # only layers that are known to
            return True
        params, data = self._examples(task.num_outputs)

        def both(params: Tree, data: Data) -> tuple[Tree, Tensor]:
            trained = pick(params, task.params)
            g, _ = grad(lambda w: task.loss({**params, **w}, data), has_aux=True)(trained)
            return g, task.outputs(params, data.x)

        try:
            with torch_seeded(0), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # PyTorch warns that some operations are slow
                vmap(both)(stack([params, params]), Data(*(torch.stack([part, part]) for part in data)))
        except RuntimeError:
            return False
        return True

    @cached_property
    def has_convolutions(self) -> bool:
        """Whether the body has a convolution."""
        return any(isinstance(part, nn.modules.conv._ConvNd) for part in self._task.modules())

    @cached_property
    def example_bytes(self) -> int:
        """Memory of one example while it passes through the model: the example and everything computed from it."""
        counts: list[int] = []
        for size in (2, 4):
            with CountBytes() as counted:
                self._task.first_output(self._task.sample(size))
            counts.append(counted.total)
        return (counts[1] - counts[0]) // 2

    # -- cost

    @lru_cache(maxsize=1024)  # noqa: B019 - a probe lives as long as its run
    def flops(self, num_outputs: int) -> Flops:
        """Count the operations for one example, with a head of this size."""
        task, (params, data) = self._task, self._examples(num_outputs)
        with CountFlops() as forward:
            features, pullback, _ = task.body_vjp(params, data.x)
        head, below = pick(params, task.head), {"": features}

        def loss(given: Tree) -> tuple[Tensor, Tree]:
            """Return the loss as a function of the head, of the features, or of both."""
            return task.head_loss({**head, **given}, given.get("", features), data), {}

        with CountFlops() as head_step:
            gradient(loss, head)
        with CountFlops() as frozen:
            gradient(loss, below)
        with CountFlops() as head_forward:
            loss({})
        with CountFlops() as backward:
            g = gradient(loss, head | below)[0][""]
            through = backward.total - head_step.total
            pullback(g)
        width = features.shape[-1] + len(task.head) - 1  # a bias is one more feature
        product = features[0, ..., 0].numel() * 2 * width if task.head_is_linear else 0
        down = backward.total - head_step.total if task.body else 0
        N = len(data.y)
        counts = forward.total, down, head_step.total, frozen.total - through, head_forward.total, N * product
        return Flops(*(total / N for total in counts))

    @lru_cache(maxsize=1024)  # noqa: B019
    def hessian_flops(self, num_outputs: int) -> float:
        """Count the operations of one Hessian product for one example. Not every model supports that."""
        task, (params, data) = self._task, self._examples(num_outputs)
        with CountFlops() as counted:
            task.hessian_product(params, data, task.params, pick(params, task.params))
        return float(counted.total / len(data.y))

    def counted(self, method: Method, size: int, num_outputs: int, rnd: Round) -> Counted:
        """Count the cost of a local update by doing it once on examples of the task's own."""
        key = (repr(method), size, num_outputs, rnd.steps, type(rnd.steps))
        if key not in self._counted:
            self._counted[key] = self._count(method, size, num_outputs, rnd)
        return self._counted[key]

    @cached_property
    def _counted(self) -> dict[Any, Counted]:
        return {}

    def _count(self, method: Method, size: int, num_outputs: int, rnd: Round) -> Counted:
        task = copy.copy(self._task)
        forwards: list[int] = []
        backwards: list[int] = []
        original = task._features

        def watched(params: Tree, x: Inputs) -> tuple[Tensor, Tree]:
            forwards.append(1)
            features, buffers = original(params, x)
            seen: Tensor = _Watched.apply(features, backwards.append)  # type: ignore[no-untyped-call]
            return seen, buffers

        with torch_seeded(0):
            personal, data = self._client(method, size, num_outputs)
            task._features = watched  # type: ignore[method-assign]
            with CountFlops() as counted:
                method.local_update(task, method.init_shared(task), personal, data, rnd)
        return Counted(counted.total, len(forwards), len(backwards))

    def numbers(self, method: Method, num_outputs: int) -> set[str]:
        """Return the names of all single numbers that a client sends, by doing its work once with two examples."""
        found = set[str]()
        with torch_seeded(0):
            if isinstance(method, Calibrates) and not method.is_calibrated:
                measured = method.measure(self._task, self._examples(num_outputs)[1])
                found |= measured.keys()
                method = method.calibrate({"": measured})
            personal, data = self._client(method, 2, num_outputs)
            shared, rnd = method.init_shared(self._task), Round(1, 1, 2, 1, 0, steps=1)
            reply = method.local_update(self._task, shared, personal, data, rnd)
        return found | reply.numbers.keys()

    def _client(self, method: Method, size: int, num_outputs: int) -> tuple[Tree, Data]:
        """Return the personal state and the examples of a client that there is not."""
        _, data = self._examples(num_outputs, size)
        (personal,) = moved([method.init_personal(self._task, Client("", num_outputs, 0))], data.y.device)
        return method.prepare(self._task, personal, data) if isinstance(method, Prepares) else personal, data

    def _examples(self, num_outputs: int, size: int = 2) -> tuple[Tree, Data]:
        """Return a model with a head of this size, and a number of examples."""
        task = self._task
        head = task.new_head(num_outputs, 0) if task.head else {}
        x = task.sample(size)
        of_one = task.first_output(x)
        yes = torch.ones(size, dtype=torch.bool, device=of_one.device)
        y = of_one.new_zeros(size, *of_one.shape[:-1], dtype=task.objective.answers or of_one.dtype)
        classes = torch.ones(num_outputs, dtype=torch.bool, device=of_one.device)
        return moved([{**task.initial, **head}], of_one.device)[0], Data(
            x, y, yes, classes, torch.zeros((), dtype=torch.int64)
        )


class _Watched(torch.autograd.Function):
    """The identity, which tells when a gradient passes through it."""

    generate_vmap_rule = True

    @staticmethod
    def forward(features: Tensor, tell: Callable[[int], None]) -> Tensor:  # noqa: ARG004
        return features.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ARG004
        ctx.tell = inputs[1]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        ctx.tell(1)
        return gradients[0], None
