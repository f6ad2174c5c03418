"""A task is a model and a loss as pure functions of a Tree, split where the body ends and the head begins.

Shapes: N examples, M features, K outputs.
"""

import copy
import math
from collections.abc import Callable
from functools import cached_property, lru_cache
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp

from coterie.counting import CountBytes, CountFlops
from coterie.errors import UserError
from coterie.streams import torch_seeded
from coterie.tree import Tree, pick

BufferPolicy = Literal["average", "local"]
HeadInit = Literal["default", "uniform"]


class Data(NamedTuple):
    """Examples of one client. A batched engine pads them; what is padding has mask 0 and counts for nothing."""

    x: Tensor  # (N, ...)
    y: Tensor  # (N,)
    mask: Tensor  # (N,) bool
    classes: Tensor  # (K,) bool: which of its outputs are classes of this client
    stream: Tensor  # () the client's stream in this round, from which minibatches are drawn


class Flops(NamedTuple):
    """Floating-point operations for one example: matrix products and convolutions, as PyTorch counts them."""

    body_forward: float
    body_backward: float  # down to the body's parameters, through the head
    head_step: float  # forward and backward of the head alone, on given features


KAIMING = math.sqrt(3) * nn.init.calculate_gain("leaky_relu", math.sqrt(5))
"""What nn.Linear divides by the square root of its inputs to bound its weights: one, but for rounding."""
_NOTHING = "\0"
"""No parameter's name begins so."""

Pullback = Callable[[Tensor], tuple[Tree]]


class Task:
    """`model` ends in the submodule called `head`; an empty name means that the whole model is body.

    `buffers` says what becomes of BatchNorm statistics and the like: "average" sends them with the shared part,
    "local" keeps them with the personal part. Parameters with requires_grad=False are constants of the task.
    `head_init` says how personal heads are drawn: as PyTorch draws their layers, or uniformly from [0, 1).
    """

    def __init__(
        self,
        model: nn.Module,
        head: str,
        example: Tensor,
        buffers: BufferPolicy = "average",
        head_init: HeadInit = "default",
    ) -> None:
        model = copy.deepcopy(model)
        self.initial: Tree = {
            name: value.detach().clone()
            for name, value in [*model.named_parameters(), *model.named_buffers()]
            if value.requires_grad or name in dict(model.named_buffers())
        }
        self._prefix = f"{head}." if head else _NOTHING
        self._body, self._head = _cut(model, head)
        self._eval_body, self._eval_head = copy.deepcopy(self._body).eval(), copy.deepcopy(self._head).eval()
        self._body.train()
        self._head.train()
        self._last = _last_linear(self._head, head)

        names = [name for name, _ in model.named_parameters() if name in self.initial]
        self.body = tuple(name for name in names if not name.startswith(self._prefix))
        self.head = tuple(name for name in names if name.startswith(self._prefix))
        self.buffers = tuple(name for name, _ in model.named_buffers())
        self.local_buffers = self.buffers if buffers == "local" else ()
        self._head_init = head_init
        self._generator = torch.Generator()
        self._example = example[:1]
        self._check_cut(model.eval(), head)
        self.head_is_linear = isinstance(self._head, nn.Linear)
        self.is_random = self._is_random()
        self.mixes_examples = self._mixes_examples()

    # -- initial values

    def shared_model(self) -> Tree:
        """All of the initial model but the buffers that stay with the client."""
        return {name: value for name, value in self.initial.items() if name not in self.local_buffers}

    def shared_body(self) -> Tree:
        """The same without the head: theta."""
        return {name: value for name, value in self.shared_model().items() if not name.startswith(self._prefix)}

    def personal_buffers(self) -> Tree:
        return pick(self.initial, self.local_buffers)

    def new_head(self, num_outputs: int, seed: int) -> Tree:
        """A freshly drawn head with so many outputs: W_i."""
        if self._last is None:
            raise UserError("this model has no head, and the method needs one; name it with model.head")
        if isinstance(self._head, nn.Linear):
            return pick(self._new_linear(self._head, num_outputs, seed), self.head)
        head = self._sized_head(num_outputs)
        with torch_seeded(seed):
            for part in head.modules():
                if callable(reset := getattr(part, "reset_parameters", None)):
                    reset()
            drawn = {self._prefix + name: value.detach().clone() for name, value in head.named_parameters()}
            if self._head_init == "uniform":
                drawn = {name: torch.rand_like(value) for name, value in drawn.items()}
        return pick(drawn, self.head)

    def _new_linear(self, layer: nn.Linear, num_outputs: int, seed: int) -> Tree:
        """The very numbers of `layer.reset_parameters`, several times as fast: a round may meet many new clients."""
        random, inputs = self._generator.manual_seed(seed), layer.in_features
        bound, weight = KAIMING / math.sqrt(inputs), torch.empty(num_outputs, inputs, dtype=layer.weight.dtype)
        drawn = {self._prefix + "weight": weight.uniform_(-bound, bound, generator=random)}
        if layer.bias is not None:
            bound, bias = 1 / math.sqrt(inputs), torch.empty(num_outputs, dtype=layer.weight.dtype)
            drawn[self._prefix + "bias"] = bias.uniform_(-bound, bound, generator=random)
        if self._head_init == "uniform":
            drawn = {name: value.uniform_(0, 1, generator=random) for name, value in drawn.items()}
        return {name: value.to(layer.weight.device) for name, value in drawn.items()}

    # -- the model

    def outputs(self, params: Tree, x: Tensor) -> Tensor:
        """The model as it is used: BatchNorm and dropout in evaluation mode. (N, K)"""
        features: Tensor = functional_call(self._eval_body, self._of_body(params), (x,))
        outputs: Tensor = functional_call(self._eval_head, self._of_head(params), (features,))
        return outputs

    def loss(self, params: Tree, data: Data) -> tuple[Tensor, Tree]:
        """The training loss over the client's examples, and the buffers as the pass leaves them."""
        features, buffers = self._features(params, data.x)
        return self.head_loss(params, features, data), buffers

    def body_vjp(self, params: Tree, x: Tensor) -> tuple[Tensor, Pullback, Tree]:
        """One pass through the body: features (N, M), the map from their gradient to theta's, and the buffers."""
        theta = pick(params, self.body)
        return vjp(lambda theta: self._features({**params, **theta}, x), theta, has_aux=True)  # type: ignore[return-value]

    def head_loss(self, params: Tree, features: Tensor, data: Data) -> Tensor:
        """The training loss as a function of the head and of given features."""
        return self.mean_loss(functional_call(self._head, self._of_head(params), (features,)), data)

    def mean_loss(self, outputs: Tensor, data: Data) -> Tensor:
        each = nn.functional.cross_entropy(outputs, data.y, reduction="none")
        return torch.where(data.mask, each, 0).sum() / data.mask.sum()

    def module(self, params: Tree) -> nn.Module:
        """The model with these parameters, as a plain module in evaluation mode."""
        module = copy.deepcopy(self._eval_body)
        if self._last is not None:
            outputs = params[self._prefix + f"{self._last}.weight".lstrip(".")].shape[0]
            module.set_submodule(self._prefix.removesuffix("."), copy.deepcopy(self._sized_head(outputs)).eval())
        module.load_state_dict(pick(params, self.body + self.head + self.buffers), strict=False)
        return module

    # -- what an engine must know of it

    def _is_random(self) -> bool:
        """Whether a training pass draws numbers, as dropout does."""
        one, other = (self._probe(self._example, seed) for seed in (0, 1))
        return not torch.equal(one, other)

    def _mixes_examples(self) -> bool:
        """Whether an example's outputs in training depend on its batch, as with BatchNorm: then padding does harm."""
        unlike = (self._example == 0).to(self._example.dtype)
        one, other = (self._probe(torch.cat([self._example, second])) for second in (self._example, unlike))
        return not torch.equal(one, other)

    @cached_property
    def has_convolutions(self) -> bool:
        return any(isinstance(part, nn.modules.conv._ConvNd) for part in self._body.modules())

    @cached_property
    def example_bytes(self) -> int:
        """What one example occupies while it passes through the model: itself, and all that is made of it."""
        counts: list[int] = []
        for size in (2, 4):
            with CountBytes() as counted:
                self._probe(torch.cat([self._example] * size))
            counts.append(counted.total)
        return (counts[1] - counts[0]) // 2

    # -- its cost

    @lru_cache(maxsize=1024)  # noqa: B019 - a task lives as long as its run
    def flops(self, num_outputs: int) -> Flops:
        """Counted, not derived: one example through the task with a head of this size."""
        x = torch.cat([self._example, self._example])  # BatchNorm refuses a single example
        yes = x.new_ones(2, dtype=torch.bool)
        data = Data(x, x.new_zeros(2, dtype=torch.long), yes, yes, x.new_zeros(()))
        params = dict(self.initial)
        if self._last is not None:
            params |= self.new_head(num_outputs, 0)
        with CountFlops() as forward:
            features, pullback, _ = self.body_vjp(params, x)
        head = pick(params, self.head)
        with CountFlops() as head_step:
            torch.func.grad(self.head_loss)(head, features, data)
        with CountFlops() as backward:
            _, gradient = torch.func.grad(self.head_loss, argnums=(0, 1))(head, features, data)
            pullback(gradient)
        both = head_step.total
        return Flops(forward.total / 2, (backward.total - both) / 2, both / 2)

    def _probe(self, x: Tensor, seed: int = 0) -> Tensor:
        """The training pass of the initial model: what comes out for the first example."""
        with torch.no_grad(), torch_seeded(seed):
            features, _ = self._features(self.initial, x if len(x) > 1 else torch.cat([x, x]))
            outputs: Tensor = functional_call(self._head, self._of_head(self.initial), (features,))
        return outputs[0]

    def _features(self, params: Tree, x: Tensor) -> tuple[Tensor, Tree]:
        buffers = {name: params[name].clone() for name in self.buffers}  # a module updates its buffers in place
        return functional_call(self._body, self._of_body({**params, **buffers}), (x,)), buffers

    @lru_cache(maxsize=1024)  # noqa: B019
    def _sized_head(self, num_outputs: int) -> nn.Module:
        """A head of that size; its values mean nothing."""
        with torch_seeded(0):
            return with_outputs(self._head, num_outputs)

    def _of_body(self, params: Tree) -> Tree:
        return pick(params, self.body + self.buffers)

    def _of_head(self, params: Tree) -> Tree:
        return {name.removeprefix(self._prefix): params[name] for name in self.head}

    def _check_cut(self, model: nn.Module, head: str) -> None:
        try:
            with torch.no_grad():
                outputs = model(self._example)
        except RuntimeError as error:
            shape = tuple(self._example.shape[1:])
            raise UserError(f"the model does not take inputs of shape {shape}: {error}") from None
        self.num_outputs: int = outputs.shape[-1]
        if not torch.equal(outputs, self.outputs(self.initial, self._example)):
            raise UserError(f"the model's output is not its head {head!r} applied to the rest; name its last layer")


def find_head(model: nn.Module, head: str) -> nn.Module:
    """The submodule of that name."""
    if head not in (names := [name for name, _ in model.named_modules() if name]):
        raise UserError(f"the model has no submodule {head!r} to be its head; it has: {', '.join(names)}")
    return model.get_submodule(head)


def with_outputs(module: nn.Module, num_outputs: int) -> nn.Module:
    """A copy whose last linear layer has so many outputs; that layer is drawn anew if it had another number."""
    module = copy.deepcopy(module)
    name = [name for name, part in module.named_modules() if isinstance(part, nn.Linear)][-1]
    last = module.get_submodule(name)
    assert isinstance(last, nn.Linear)
    if last.out_features == num_outputs:
        return module
    fresh = nn.Linear(last.in_features, num_outputs, last.bias is not None, last.weight.device, last.weight.dtype)
    if not name:
        return fresh
    module.set_submodule(name, fresh)
    return module


def _cut(model: nn.Module, head: str) -> tuple[nn.Module, nn.Module]:
    if not head:
        return copy.deepcopy(model), nn.Identity()
    body = copy.deepcopy(model)
    body.set_submodule(head, nn.Identity())
    return body, copy.deepcopy(find_head(model, head))


def _last_linear(module: nn.Module, head: str) -> str | None:
    linear = [name for name, child in module.named_modules() if isinstance(child, nn.Linear)]
    if next(module.buffers(), None) is not None:
        raise UserError(f"the head {head!r} has buffers (a BatchNorm?); buffers belong in the body")
    if head and not linear:
        raise UserError(f"the head {head!r} has no nn.Linear layer, so it cannot be sized to a client's classes")
    return linear[-1] if linear else None
