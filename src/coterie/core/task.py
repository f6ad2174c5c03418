"""A task is a model and a loss as pure functions of a Tree, split where the body ends and the head begins.

Shapes: N examples, M features, K outputs. Where a model answers at each of T positions, its features are (N, T, M) and
its outputs (N, T, K).
"""

import copy
import warnings
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vjp, vmap

from coterie.core.counting import CountBytes
from coterie.core.data import Data, Graph, Inputs
from coterie.core.flops import Flops, count_flops, count_hessian_product
from coterie.core.heads import HeadInit as HeadInit
from coterie.core.heads import Heads, cut, last_linear
from coterie.core.objective import Classification, Objective
from coterie.core.tree import Tree, pick, stack
from coterie.errors import UserError
from coterie.streams import torch_seeded

BufferPolicy = Literal["average", "local"]


_NOTHING = "\0"
"""No parameter's name begins so."""

Pullback = Callable[[Tensor], tuple[Tree]]


class Task:
    """`model` ends in the submodule called `head`; an empty name means that the whole model is body.

    `buffers` says what becomes of BatchNorm statistics and the like: "average" sends them with the shared part,
    "local" keeps them with the personal part. Parameters with requires_grad=False are constants of the task.
    `head_init` says how personal heads are drawn: as PyTorch draws their layers, uniformly from [0, 1), or with
    orthonormal rows and no bias. `example` is one of the inputs, or one node where inputs are graphs.
    """

    def __init__(
        self,
        model: nn.Module,
        head: str,
        example: Tensor,
        buffers: BufferPolicy = "average",
        head_init: HeadInit = "default",
        objective: Objective = Classification(),  # noqa: B008 - it has no state
        is_graph: bool = False,
    ) -> None:
        model = copy.deepcopy(model)
        self.initial: Tree = {
            name: value.detach().clone()
            for name, value in [*model.named_parameters(), *model.named_buffers()]
            if value.requires_grad or name in dict(model.named_buffers())
        }
        self._prefix = f"{head}." if head else _NOTHING
        self._body, self._head = cut(model, head)
        self._eval_body, self._eval_head = copy.deepcopy(self._body).eval(), copy.deepcopy(self._head).eval()
        self._body.train()
        self._head.train()
        self._last = last_linear(self._head, head)

        names = [name for name, _ in model.named_parameters() if name in self.initial]
        self.body = tuple(name for name in names if not name.startswith(self._prefix))
        self.head = tuple(name for name in names if name.startswith(self._prefix))
        self.buffers = tuple(name for name, _ in model.named_buffers())
        norms = [name for name, part in model.named_modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
        self.norm = tuple(name for name in self.initial if name.rpartition(".")[0] in norms)  # buffers and all
        self.local_buffers = self.buffers if buffers == "local" else ()
        self._heads = Heads(self._head, self._prefix, head_init)
        self._example = example[:1].clone()  # not the pool that it is a row of
        self.objective = objective
        self.is_graph = is_graph
        self._check_cut(model.eval(), head)
        self.head_is_linear = isinstance(self._head, nn.Linear)
        self.mixes_examples = False
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
            raise UserError(
                "this model has no head, and the method needs one: coterie.train(..., head=...) names that of an "
                "nn.Module, and the models that a recipe names all have one"
            )
        return pick(self._heads.draw(num_outputs, seed), self.head)

    # -- the model

    def outputs(self, params: Tree, x: Inputs) -> Tensor:
        """The model as it is used: BatchNorm and dropout in evaluation mode. (N, K)"""
        features: Tensor = functional_call(self._eval_body, self._of_body(params), (x,))
        outputs: Tensor = functional_call(self._eval_head, self._of_head(params), (features,))
        return outputs

    def loss(self, params: Tree, data: Data) -> tuple[Tensor, Tree]:
        """The training loss over the client's examples, and the buffers as the pass leaves them."""
        features, buffers = self._features(params, data.x)
        return self.head_loss(params, features, data), buffers

    def losses(self, params: Tree, data: Data) -> tuple[Tensor, Tree]:
        """The same for each example, as the sum over its positions. (N,)"""
        features, buffers = self._features(params, data.x)
        outputs: Tensor = functional_call(self._head, self._of_head(params), (features,))
        each = self.objective.losses(outputs.flatten(0, -2), data.y.flatten()).reshape(data.y.shape)
        counted = self.objective.counted(data.y, data.mask)
        return torch.where(counted, each, 0).reshape(len(data.y), -1).sum(1), buffers

    def hessian_product(self, params: Tree, data: Data, over: Sequence[str], v: Tree) -> Tree:
        """The Hessian of the loss over the parameters named, times v, exactly."""

        def along(w: Tree) -> Tensor:
            g = grad(lambda w: self.loss({**params, **w}, data)[0])(w)
            return torch.stack([(value * v[name]).sum() for name, value in g.items()]).sum()

        product: Tree = grad(along)(pick(params, over))
        return product

    def body_vjp(self, params: Tree, x: Inputs) -> tuple[Tensor, Pullback, Tree]:
        """One pass through the body: features (N, M), the map from their gradient to theta's, and the buffers."""
        theta = pick(params, self.body)
        return vjp(lambda theta: self._features({**params, **theta}, x), theta, has_aux=True)  # type: ignore[return-value]

    def head_loss(self, params: Tree, features: Tensor, data: Data) -> Tensor:
        """The training loss as a function of the head and of given features."""
        return self.mean_loss(functional_call(self._head, self._of_head(params), (features,)), data)

    def mean_loss(self, outputs: Tensor, data: Data) -> Tensor:
        return self.objective.mean_loss(outputs, data.y, data.mask)

    def module(self, params: Tree) -> nn.Module:
        """The model with these parameters, as a plain module in evaluation mode."""
        module = copy.deepcopy(self._eval_body)
        if self._last is not None:
            outputs = params[self._prefix + f"{self._last}.weight".lstrip(".")].shape[0]
            module.set_submodule(self._prefix.removesuffix("."), copy.deepcopy(self._heads.sized(outputs)).eval())
        module.load_state_dict(pick(params, self.body + self.head + self.buffers), strict=False)
        return module

    # -- what an engine must know of it

    def _is_random(self) -> bool:
        """Whether a training pass draws numbers, as dropout does."""
        one, other = (self._probe(self._batch(2), seed) for seed in (0, 1))
        return not torch.equal(one, other)

    def _mixes_examples(self) -> bool:
        """Whether an example's outputs in training depend on its batch, as with BatchNorm: then padding does harm."""
        unlike = (self._example == 0).to(self._example.dtype)
        one, other = (self._probe(self._batch(1, second)) for second in (self._example, unlike))
        return not torch.equal(one, other)

    @cached_property
    def runs_batched(self) -> bool:
        """Whether torch.func.vmap can do it for two clients at once: a step of training, and an evaluation."""
        params, data = self._costed(self.num_outputs)

        def both(params: Tree, data: Data) -> tuple[Tree, Tensor]:
            trained = pick(params, self.body + self.head)
            g, _ = grad(lambda w: self.loss({**params, **w}, data), has_aux=True)(trained)
            return g, self.outputs(params, data.x)

        try:
            with torch_seeded(0), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that it is slow
                vmap(both)(stack([params, params]), Data(*(torch.stack([part, part]) for part in data)))
        except RuntimeError:
            return False
        return True

    @cached_property
    def has_convolutions(self) -> bool:
        return any(isinstance(part, nn.modules.conv._ConvNd) for part in self._body.modules())

    @cached_property
    def example_bytes(self) -> int:
        """What one example occupies while it passes through the model: itself, and all that is made of it."""
        counts: list[int] = []
        for size in (2, 4):
            with CountBytes() as counted:
                self._probe(self._batch(size))
            counts.append(counted.total)
        return (counts[1] - counts[0]) // 2

    # -- its cost

    @lru_cache(maxsize=1024)  # noqa: B019 - a task lives as long as its run
    def flops(self, num_outputs: int) -> Flops:
        """Of one example, with a head of this size."""
        return count_flops(self, *self._costed(num_outputs))

    @lru_cache(maxsize=1024)  # noqa: B019
    def hessian_flops(self, num_outputs: int) -> float:
        """The same of `hessian_product` over all parameters, which not every model has."""
        return count_hessian_product(self, *self._costed(num_outputs))

    def _costed(self, num_outputs: int) -> tuple[Tree, Data]:
        head = self.new_head(num_outputs, 0) if self._last is not None else {}
        x, yes = self._batch(2), torch.ones(2, dtype=torch.bool, device=self._example.device)
        of_one = self._probe(x)
        y = of_one.new_zeros(2, *of_one.shape[:-1], dtype=self.objective.answers or of_one.dtype)
        return {**self.initial, **head}, Data(x, y, yes, yes, y.new_zeros(()))

    def _batch(self, size: int, *others: Tensor) -> Inputs:
        """The example so many times, and others; as a graph, nodes in a ring."""
        x = torch.cat([self._example] * size + [*others])
        if not self.is_graph:
            return x
        here = torch.arange(len(x), device=x.device)
        return Graph(x, torch.stack([torch.cat([here, here.roll(1)]), torch.cat([here.roll(1), here])]))

    def _probe(self, x: Inputs, seed: int = 0) -> Tensor:
        """The training pass of the initial model: what comes out for the first example."""
        with torch.no_grad(), torch_seeded(seed):
            features, _ = self._features(self.initial, x)
            outputs: Tensor = functional_call(self._head, self._of_head(self.initial), (features,))
        return outputs[0]

    def _features(self, params: Tree, x: Inputs) -> tuple[Tensor, Tree]:
        buffers = {name: params[name].clone() for name in self.buffers}  # a module updates its buffers in place
        # BatchNorm refuses a single example; twice the same has its mean, and no variance either.
        alone = self.mixes_examples and isinstance(x, Tensor) and len(x) == 1
        given = torch.cat([x, x]) if alone else x
        features: Tensor = functional_call(self._body, self._of_body({**params, **buffers}), (given,))
        return features[:1] if alone else features, buffers

    def _of_body(self, params: Tree) -> Tree:
        return pick(params, self.body + self.buffers)

    def _of_head(self, params: Tree) -> Tree:
        return {name.removeprefix(self._prefix): params[name] for name in self.head}

    def _check_cut(self, model: nn.Module, head: str) -> None:
        try:
            with torch.no_grad():
                outputs = model(self._batch(1))
        except (AttributeError, IndexError, RuntimeError, TypeError) as error:
            shape = "x".join(map(str, self._example.shape[1:]))
            kind = "graphs with nodes" if self.is_graph else "inputs"
            embeds = any(isinstance(part, nn.Embedding) for part in model.modules())
            tokens = "; if these are tokens, say tokens=True" if embeds and self._example.is_floating_point() else ""
            raise UserError(
                f"the model does not take {kind} of shape {shape} and type {self._example.dtype}: {error}{tokens}"
            ) from None
        if not isinstance(outputs, Tensor) or outputs.ndim < 2:
            what = f"one {tuple(outputs.shape)}" if isinstance(outputs, Tensor) else f"a {type(outputs).__name__}"
            raise UserError(
                f"the model must return one tensor (N, ..., outputs), not {what}; wrap it in a module that does"
            )
        self.num_outputs: int = outputs.shape[-1]
        with torch.no_grad():  # an LSTM rounds otherwise with a tape
            same = torch.equal(outputs, self.outputs(self.initial, self._batch(1)))
        if not same:
            raise UserError(f"the model's output is not its head {head!r} applied to the rest; name its last layer")
