"""Dense layers of many clients that are trained in place, with gradients in closed form.

The first layer can be cheaper still. Its gradient Gᵀ X_b is a combination of the client's own N examples, so its
weights never leave the span of their start W, the centre P of the pull, the control Q, and the examples X:

    weights = a W + p P + q Q + Aᵀ X        outputs of batch b = a (X Wᵀ)_b + p (X Pᵀ)_b + q (X Qᵀ)_b + (X Xᵀ)_b A

A step changes a, p, q and the rows b of A. It needs one product with (B, N) instead of two with (B, D). Rows of A that
belong to examples which no step has seen yet are zero, and are left out. A bias counts as the weight of a feature that
is always 1. `_Span` works this way, `_Weights` with the weights themselves, and the number of operations decides.

Shapes: C clients, N examples with D features, B examples per step, H outputs of a layer, K outputs of the model.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from coterie.core.chain import Chain, Dense, Pointwise
from coterie.core.objective import Objective
from coterie.core.pullback import pulled_back
from coterie.core.tree import Tree

Rate = float | Tensor
"""The learning rate of a step: one for all clients, or a tensor (C, 1, 1)."""


THIN = 2.2
"""Time of a multiplication in a product with the few rows of a minibatch, over that in a large product."""


@dataclass(frozen=True)
class Plan:
    """What is the same for all clients. It is no tuple, so that vmap does not look for tensors in it."""

    chain: Chain
    objective: Objective
    over: frozenset[str]
    """Names of the parameters to train."""
    steps: int
    """Number of steps of a client without padding."""
    epochs: int
    """Number of epochs after which a client stops; 0 if all clients take `steps` steps."""
    size: int
    """Examples per step; 0 means all."""
    momentum: float
    mu: float
    """Strength of the pull."""
    rates: Sequence[float]
    """Rate of each step; empty if the rates are tensors."""
    front: "Front | None" = None
    """What comes before the chain, if the model is not all chain."""


class Front(NamedTuple):
    """The part of a model that autograd differentiates."""

    run: Callable[[Tree, Tensor], tuple[Tensor, Tree]]
    """Return the features (N, D) and the buffers after the pass, from the parameters and the inputs."""
    params: tuple[str, ...]
    buffers: tuple[str, ...]


class Given(NamedTuple):
    """What a client starts from, or C clients: then each tensor has a leading axis."""

    params: Tree
    """All parameters of the model."""
    centre: Tree
    """Centre of the pull; empty without one."""
    control: Tree
    """Tree that is subtracted from every gradient; empty without one."""
    x: Tensor  # (N, D)
    y: Tensor  # (N,)
    mask: Tensor | None  # (N,); None if nobody has padding
    stream: Tensor  # ()
    rates: Tensor | None  # (steps,); None if `Plan.rates` has them


class Batch(NamedTuple):
    """The examples of one step."""

    rows: Tensor | slice
    """Places (C, B) among the C x N examples, or the range of places that is the same for all clients."""
    counted: Tensor  # (C, B) which answers count
    seen: int
    """Number of examples, the first ones, that the steps before may have seen."""
    step: int | Tensor
    """Number of the step, 0, 1, ..., or (C,) one for each client."""
    own: Tensor | None = None
    """Which clients (C,) take the step; None means all."""

    def share(self, dtype: torch.dtype) -> Tensor:
        """Return the weight (C, B) of each example in the mean."""
        total = self.counted.sum(1, keepdim=True, dtype=dtype)
        return self.counted / (total if self.own is None else torch.where(self.own[:, None], total, 1))

    def take(self, table: Tensor) -> Tensor:
        """Return the rows of a table (C, N, ...) that belong to the step; as a view if they are a range."""
        return table[:, self.rows] if isinstance(self.rows, slice) else rows_of(table, self.rows)


def rows_of(table: Tensor, rows: Tensor) -> Tensor:
    """Return the rows of a table (C, N, ...), by their places (C, B) among all C x N rows."""
    return table.flatten(0, 1).index_select(0, rows.flatten()).view(*rows.shape, *table.shape[2:])


def build_layers(plan: Plan, given: Given, in_span: bool) -> "list[Layer]":
    """Return the layers of the model, from the first to the last. `in_span` is the answer of `span_is_cheaper`."""
    first, *others = plan.chain
    assert isinstance(first, Dense)
    bottom: list[Layer] = [(_Span if in_span else _Bottom)(plan, given, first)]
    if plan.front is not None:
        bottom = [_Taped(plan, given, plan.front), _Weights(plan, given, first)]
    return bottom + [_Weights(plan, given, part) if isinstance(part, Dense) else _Function(part) for part in others]


def span_is_cheaper(plan: Plan, given: Given) -> bool:
    """Compare the times of the two ways to train the first layer, by their numbers of multiplications."""
    first = plan.chain[0]
    assert isinstance(first, Dense)
    if first.weight not in plan.over or plan.front is not None:
        return False
    N, D = given.x.shape[1:]
    H = given.params[first.weight].shape[1]
    rows = plan.steps * (plan.size or N)
    if given.mask is None:
        N = min(N, rows)  # no other examples are used
    seen = rows - (min(rows, N) / 2 if plan.size else N)  # a half of the others in the first epoch; none at first
    tables = 1 + (first.weight in given.centre) + (first.weight in given.control)
    direct = 2 * rows * D * H * (THIN if plan.size else 1)
    return N * N * D + (tables + 1) * N * D * H + seen * N * H < direct


class Layer(ABC):
    """A layer of C clients, in the course of a step."""

    @abstractmethod
    def forward(self, h: Any) -> Tensor:
        """Return the outputs (C, B, H) for inputs (C, B, D). The first layer takes a Batch."""

    @abstractmethod
    def backward(self, g: Tensor, rate: Rate) -> Tensor:
        """Take a step, given the gradient over the outputs. Returns the gradient over the inputs."""

    def trained(self) -> Tree:
        """Return the parameters that were trained."""
        return {}


class _Function(Layer):
    """A function of each value."""

    def __init__(self, part: Pointwise) -> None:
        self._part = part

    def forward(self, h: Tensor) -> Tensor:
        self._z = h
        self._h = self._part.forward(h)
        return self._h

    def backward(self, g: Tensor, rate: Rate) -> Tensor:  # noqa: ARG002
        return self._part.backward(g, self._z, self._h)


class _Parameter:
    """A parameter of C clients, which gradient steps change in place."""

    def __init__(self, plan: Plan, given: Given, name: str) -> None:
        self._momentum, self._mu = plan.momentum, plan.mu
        self._name, self._is_bias, self.is_trained = name, given.params[name].ndim == 2, name in plan.over
        start, centre, control = given.params[name], given.centre.get(name), given.control.get(name)
        self.value = _rows(start)
        self._is_copy = False
        self._centre = None if centre is None else _rows(centre)
        self._control = None if control is None else _rows(control)
        self._velocity = torch.zeros_like(self.value) if plan.momentum and self.is_trained else None

    def step(self, add: Callable[[Tensor, float, Rate], object], rate: Rate) -> None:
        """Take a step. `add(target, keep, rate)` changes target to keep * target - rate * gradient."""
        if not self.is_trained:
            return
        if not self._is_copy:  # until then, all clients share what they start from
            self.value, self._is_copy = self.value.clone(), True
        if self._velocity is None:
            if self._mu:
                self.value.mul_(1 - rate * self._mu)
            _add(self.value, self._centre, rate * self._mu)
            _add(self.value, self._control, rate)
            add(self.value, 1.0, rate)
            return
        add(self._velocity, self._momentum, -1.0)
        if self._mu:
            _add(self._velocity, self.value, self._mu)
        _add(self._velocity, self._centre, -self._mu)
        _add(self._velocity, self._control, -1.0)
        _add(self.value, self._velocity, -rate)

    @property
    def own(self) -> Tensor:
        """The value in the shape of the parameter."""
        return self.value[:, 0] if self._is_bias else self.value

    def trained(self) -> Tree:
        """Return the parameter, if it was trained."""
        return {self._name: self.own} if self.is_trained else {}


class _Weights(Layer):
    """A linear layer whose weights are stored."""

    def __init__(self, plan: Plan, given: Given, part: Dense) -> None:
        self._weight = _Parameter(plan, given, part.weight)
        self._bias = None if part.bias is None else _Parameter(plan, given, part.bias)

    def forward(self, h: Tensor) -> Tensor:
        self._h = h
        return _outputs(h, self._weight.value, self._bias.own if self._bias else None)

    def backward(self, g: Tensor, rate: Rate) -> Tensor:
        down = torch.bmm(g, self._weight.value)
        self._step(g, rate)
        return down

    def _step(self, g: Tensor, rate: Rate) -> None:
        def add_product(target: Tensor, keep: float, rate: Rate) -> None:
            """Change target to keep * target - rate * gradient."""
            scaled, alpha = (g * rate, 1.0) if isinstance(rate, Tensor) else (g, rate)
            target.baddbmm_(scaled.mT, self._h, beta=keep, alpha=-alpha)

        self._weight.step(add_product, rate)
        _step_bias(self._bias, g, rate)

    def trained(self) -> Tree:
        return {**self._weight.trained(), **(self._bias.trained() if self._bias else {})}


class _Bottom(_Weights):
    """A first layer whose weights are stored."""

    def __init__(self, plan: Plan, given: Given, part: Dense) -> None:
        super().__init__(plan, given, part)
        self._x = given.x

    def forward(self, h: Batch) -> Tensor:  # type: ignore[override]
        return super().forward(h.take(self._x))

    def backward(self, g: Tensor, rate: Rate) -> Tensor:
        self._step(g, rate)
        return g


class _Taped(Layer):
    """Everything before the chain, for one client, by autograd."""

    def __init__(self, plan: Plan, given: Given, front: Front) -> None:
        self._front, self._x = front, given.x
        self._params = {name: _Parameter(plan, given, name) for name in front.params}
        self._state = {name: given.params[name][0] for name in front.buffers}

    def forward(self, h: Batch) -> Tensor:
        self._leaves = {name: part.own[0].detach().requires_grad_() for name, part in self._params.items()}
        with torch.enable_grad():
            self._h, self._state = self._front.run({**self._leaves, **self._state}, h.take(self._x)[0].clone())
        return self._h.detach()[None]

    def backward(self, g: Tensor, rate: Rate) -> Tensor:
        leaves = {name: leaf for name, leaf in self._leaves.items() if self._params[name].is_trained}
        for name, slope in pulled_back(self._h, leaves, g[0]).items():
            self._params[name].step(partial(_add_to, slope), rate)
        return g

    def trained(self) -> Tree:
        params = {name: value for part in self._params.values() for name, value in part.trained().items()}
        return {**params, **{name: value[None] for name, value in self._state.items()}}


class _Span(Layer):
    """A first layer whose weights are a W + p P + q Q + Aᵀ X, without ever being computed until the end."""

    def __init__(self, plan: Plan, given: Given, part: Dense) -> None:
        self._momentum, self._mu, self._x = plan.momentum, plan.mu, given.x
        has_bias = part.bias is not None and part.bias in plan.over
        self._names = [name for name in (part.weight, part.bias if has_bias else None) if name]
        self._fixed = given.params[part.bias][:, None] if part.bias and not has_bias else None
        known = [tree for tree in (given.params, given.centre, given.control) if part.weight in tree]
        self._known = [[tree[name] for name in self._names] for tree in known]
        self._pulls = [0.0, *[-plan.mu] * (part.weight in given.centre), *[-1.0] * (part.weight in given.control)]
        self._tables = [_outputs(given.x, *each) for each in self._known]  # X Wᵀ, X Pᵀ, X Qᵀ, each with its bias
        self._gram = torch.bmm(given.x, given.x.mT)  # X Xᵀ
        if has_bias:
            self._gram += 1
        self._scales: list[Rate] = [1.0, *[0.0] * (len(known) - 1)]  # a, p, q
        self._moves: list[Rate] = [0.0] * len(known)  # their velocities
        self._A = torch.zeros_like(self._tables[0])
        self._velocity = torch.zeros_like(self._A) if plan.momentum else None

    def forward(self, h: Batch) -> Tensor:
        self._batch = h
        start = self._combined([h.take(table) for table in self._tables])
        z = torch.baddbmm(start, h.take(self._gram)[..., : h.seen], self._A[:, : h.seen]) if h.seen else start.clone()
        return z if self._fixed is None else z.add_(self._fixed)

    def _combined(self, parts: Sequence[Tensor]) -> Tensor:
        """Return a, p and q times what belongs to W, P and Q."""
        start = parts[0] * self._scales[0] if self._mu else parts[0]
        for scale, each in zip(self._scales[1:], parts[1:], strict=True):
            start = start + scale * each
        return start

    def backward(self, g: Tensor, rate: Rate) -> Tensor:
        # The gradient of the weights is that of a W + p P + q Q by a, p, q, and that of Aᵀ X by the rows of A.
        mu, m = self._mu, self._momentum
        if self._velocity is None:
            if mu:
                self._A.mul_(1 - rate * mu)
            self._add_rows(self._A, g, rate)
        else:
            self._velocity.mul_(m)
            if mu:
                self._velocity.add_(self._A, alpha=mu)
            self._add_rows(self._velocity, g, -1.0)
            _add(self._A, self._velocity, -rate)
        slopes = [mu * scale + pull for scale, pull in zip(self._scales, self._pulls, strict=True)]
        self._moves = [m * move + slope for move, slope in zip(self._moves, slopes, strict=True)]
        self._scales = [scale - rate * move for scale, move in zip(self._scales, self._moves, strict=True)]
        return g

    def _add_rows(self, target: Tensor, g: Tensor, rate: Rate) -> None:
        """Subtract rate times g from the rows of the batch."""
        rows = self._batch.rows
        if isinstance(rows, slice):
            _add(target[:, rows], g, -rate)
            return
        scaled, alpha = (g * rate, 1.0) if isinstance(rate, Tensor) else (g, rate)
        target.view(-1, target.shape[-1]).index_add_(0, rows.flatten(), scaled.flatten(0, 1), alpha=-alpha)

    def trained(self) -> Tree:
        weights, *biases = zip(*self._known, strict=True)
        after = [torch.baddbmm(self._combined(weights), self._A.mT, self._x)]
        for each in biases:
            after.append(self._combined([bias[:, None] for bias in each])[:, 0] + self._A.sum(1))
        return dict(zip(self._names, after, strict=True))


def _rows(value: Tensor) -> Tensor:
    """Return a bias (C, H) as one row (C, 1, H), and anything else as it is."""
    return value[:, None] if value.ndim == 2 else value


def _add(target: Tensor, other: Tensor | None, rate: Rate) -> None:
    """Add rate times another tensor in place."""
    if other is not None:
        target.addcmul_(other, rate) if isinstance(rate, Tensor) else target.add_(other, alpha=rate)


def _step_bias(bias: _Parameter | None, g: Tensor, rate: Rate) -> None:
    if bias is not None:
        bias.step(partial(_add_to, g.sum(1)), rate)


def _add_to(slope: Tensor, target: Tensor, keep: float, rate: Rate) -> None:
    """Change target to keep * target - rate * slope."""
    _add(target if keep == 1 else target.mul_(keep), slope.view_as(target), -rate)


def _outputs(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x weightᵀ + bias for all clients; as one product if they have the same weight and bias."""
    if len(x) > 1 and (weight.stride(0) or (bias is not None and bias.stride(0))):
        return torch.bmm(x, weight.mT) if bias is None else torch.baddbmm(bias[:, None], x, weight.mT)
    flat = x.flatten(0, 1)
    together = flat @ weight[0].T if bias is None else torch.addmm(bias[0], flat, weight[0].T)
    return together.view(*x.shape[:2], -1)
