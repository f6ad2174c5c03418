"""A task: a model and its loss as pure functions of a tree, split where the body ends and the head begins.

Shapes: N examples, M features, K outputs. If a model answers at each of T positions, its features are (N, T, M) and its
outputs (N, T, K).
"""

import copy
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vjp

from coterie.core.chain import Chain, find_chain, find_tail
from coterie.core.data import Data, Graph, Inputs
from coterie.core.gaussian import Gaussian
from coterie.core.heads import HeadInit, Heads, cut
from coterie.core.objective import Classification, Objective
from coterie.core.pullback import pulled_back
from coterie.core.suitable import check_gradient, copied, first_outputs
from coterie.core.tree import Tree, pick
from coterie.errors import UserError
from coterie.streams import torch_seeded

BufferPolicy = Literal["average", "local"]
Pullback = Callable[[Tensor], tuple[Tree]]


class Task:
    """A model and its loss, as pure functions.

    Args:
        model: the network. Parameters with requires_grad=False are constants of the task.
        head: name of the submodule that the model ends in. An empty name means that the whole model is body.
        example: one input, or one node if inputs are graphs. Only its shape and type matter.
        buffers: what happens to BatchNorm statistics and other buffers: "average" sends them with the shared model,
            "local" keeps them in the personal state.
        head_init: how personal heads are drawn: as PyTorch draws their layers, uniformly from [0, 1), or with
            orthonormal rows and no bias.
        objective: what is predicted, with its loss and score.
        is_graph: whether inputs are graphs.
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
        model = copied(model)
        own_buffers = dict(model.named_buffers())
        values = {name: value.detach() for name, value in [*model.named_parameters(), *own_buffers.items()]}
        frozen = {name for name, value in model.named_parameters() if not value.requires_grad}
        self._filters = {
            f"{name}.weight"
            for name, part in model.named_modules()
            if isinstance(part, nn.Conv2d) and not example.is_cuda
        }
        own_values = {name: value.clone() for name, value in values.items() if name not in frozen}
        self.initial: Tree = self.laid_out(own_values)
        self._head_name = head
        self._body, own_head = cut(model, head)
        self._eval_body = copy.deepcopy(self._body).eval()
        self._body.train()

        names = [name for name, _ in model.named_parameters() if name in self.initial]
        self.body = tuple(name for name in names if not self._is_of_head(name))
        """Names of the body's parameters."""
        self.head = tuple(name for name in names if self._is_of_head(name))
        """Names of the head's parameters."""
        self.params = self.body + self.head
        """Names of all parameters."""
        self.buffers = tuple(own_buffers)
        """Names of all buffers."""
        self.local_buffers = self.buffers if buffers == "local" else ()
        """Names of the buffers that stay with the client."""
        norms = [name for name, part in model.named_modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
        self.norm = tuple(name for name in self.initial if name.rpartition(".")[0] in norms)
        """Names of the parameters and buffers of BatchNorm layers."""
        self._example = example[:1].clone()  # a copy, not a view of the data it is a row of
        self.objective = objective
        self.is_graph = is_graph
        outputs = first_outputs(model.eval(), self.sample(1))
        self.num_outputs: int = outputs.shape[-1]
        """Number of outputs of the initial model."""
        with torch.no_grad():
            features = self._eval_body(self.sample(1))
        self.num_features: int = features.flatten(min(features.ndim, outputs.ndim) - 1).shape[-1]
        """Number of features for each answer."""
        self._heads = Heads(own_head, head, head_init, features)
        self._check_cut(own_values, outputs, head)
        self.head_is_linear = self._heads.is_linear
        """Whether the head is one plain linear layer, so that its gradient is known in closed form."""
        self.is_gaussian = any(isinstance(part, Gaussian) for part in own_head.modules())
        """Whether the head begins by drawing representations from the distributions that its features describe."""
        self.chain = find_chain(self._body, own_head, head, set(self.params), self._example.ndim)
        """The layers, if the model is a chain of dense layers, whose gradient is known in closed form."""
        ends = find_tail(self._body, own_head, head, set(self.params)) if features.ndim == 2 else None
        self.tail: Chain | None
        self.tail, self._front = (None, self._body) if ends is None else ends
        """The dense layers that the model ends in, if it does. What comes before them is the front."""
        self.front_params = tuple(name for name, _ in self._front.named_parameters() if name in self.body)
        """Names of the front's parameters."""
        self.mixes_examples = False
        self.is_random = self._is_random()
        """Whether a training pass draws random numbers, as dropout does."""
        self.mixes_examples = self._mixes_examples()
        """Whether an example's outputs in training depend on its batch, as with BatchNorm. Then padding does harm."""
        self.modes_agree = self._modes_agree()
        """Whether the body gives the same features in training as in use: it has no dropout and no buffers."""
        two = self.sample(2)
        check_gradient(self.initial, self.params, self.body, lambda params: self.training_outputs(params, two)[0])

    def with_own_modules(self) -> "Task":
        """Return a copy with modules of its own: passes put parameters into them, so threads cannot share them."""
        own = copy.copy(self)
        own._body, own._eval_body, own._front, own._heads = copy.deepcopy(
            (self._body, self._eval_body, self._front, self._heads)
        )
        return own

    # -- initial values

    def shared_model(self) -> Tree:
        """Return the initial model, without the buffers that stay with the client."""
        return {name: value for name, value in self.initial.items() if name not in self.local_buffers}

    def shared_body(self) -> Tree:
        """Return the initial body θ, without the buffers that stay with the client."""
        return {name: value for name, value in self.shared_model().items() if not self._is_of_head(name)}

    def personal_buffers(self) -> Tree:
        """Return the initial values of the buffers that stay with the client."""
        return pick(self.initial, self.local_buffers)

    def flag(self) -> Tensor:
        """Return a False for a personal state, on the device of the model."""
        return next(iter(self.initial.values())).new_zeros((), dtype=torch.bool)

    def new_head(self, num_outputs: int, seed: int) -> Tree:
        """Draw a head W_i with this number of outputs, on the CPU. Personal states go to the device together."""
        if not self._head_name:
            raise UserError(
                "the method needs a model with a head, and this model has none: name the head of your nn.Module with "
                "coterie.train(..., head=...), or use a model from `coterie models`"
            )
        return pick(self._heads.draw(num_outputs, seed), self.head)

    def orthogonal_head(self) -> Tree:
        """Return the initial head with orthonormal rows in all its matrices, or columns if there are more rows."""
        return pick(self._heads.orthogonal(pick(self.initial, self.head)), self.head)

    def laid_out(self, params: Tree) -> Tree:
        """Return a model whose filters of 2-d convolutions are stored with channels last, which is faster on a CPU."""
        if torch._C._functorch.peek_interpreter_stack() is not None:  # clients of a vmap have a layout of their own
            return dict(params)
        return {
            name: value.contiguous(memory_format=torch.channels_last) if name in self._filters else value
            for name, value in params.items()
        }

    # -- the model

    def outputs(self, params: Tree, x: Inputs) -> Tensor:
        """Return the outputs (N, K) of the model as it is used, with BatchNorm and dropout in evaluation mode."""
        return self.head_outputs(params, self.features(params, x))

    def features(self, params: Tree, x: Inputs) -> Tensor:
        """Return the features (N, M) of the body as it is used."""
        features: Tensor = functional_call(self._eval_body, self._of_body(params), (x,))
        return features

    def training_features(self, params: Tree, x: Inputs) -> tuple[Tensor, Tree]:
        """Return the features (N, M) of the body in training mode, and the buffers as the pass leaves them."""
        return self._features(params, x)

    def head_outputs(self, params: Tree, features: Tensor) -> Tensor:
        """Return the outputs (N, K) of the head as it is used, for given features."""
        return self._head_outputs(params, features, training=False)

    def training_outputs(self, params: Tree, x: Inputs) -> tuple[Tensor, Tree]:
        """Return the outputs (N, K) in training mode, and the buffers as the pass leaves them."""
        features, buffers = self._features(params, x)
        return self._head_outputs(params, features, training=True), buffers

    def loss(self, params: Tree, data: Data) -> tuple[Tensor, Tree]:
        """Return the mean training loss over the examples, and the buffers as the pass leaves them."""
        outputs, buffers = self.training_outputs(params, data.x)
        return self.mean_loss(outputs, data), buffers

    def losses(self, params: Tree, data: Data) -> tuple[Tensor, Tree]:
        """Return the training loss (N,) of each example, summed over its positions, and the buffers."""
        outputs, buffers = self.training_outputs(params, data.x)
        each = self.objective.losses(outputs.flatten(0, -2), data.y.flatten()).reshape(data.y.shape)
        counted = self.objective.counted(data.y, data.mask)
        return torch.where(counted, each, 0).reshape(len(data.y), -1).sum(1), buffers

    def hessian_product(self, params: Tree, data: Data, over: Sequence[str], v: Tree) -> Tree:
        """Return the exact product of the loss's Hessian over the named parameters with v."""

        def along(w: Tree) -> Tensor:
            g = grad(lambda w: self.loss({**params, **w}, data)[0])(w)
            return torch.stack([(value * v[name]).sum() for name, value in g.items()]).sum()

        product: Tree = grad(along)(pick(params, over))
        return product

    def body_vjp(self, params: Tree, x: Inputs) -> tuple[Tensor, Pullback, Tree]:
        """Pass through the body once. Returns (features (N, M), map from their gradient to θ's, buffers)."""
        theta = pick(params, self.body)
        if torch._C._functorch.peek_interpreter_stack() is not None:
            return vjp(lambda theta: self._features({**params, **theta}, x), theta, has_aux=True)  # type: ignore[return-value]
        leaves = {name: value.detach().requires_grad_() for name, value in theta.items()}
        with torch.enable_grad():
            features, buffers = self._features({**params, **leaves}, x)

        return (
            features.detach(),
            lambda g: (pulled_back(features, leaves, g),),
            {name: value.detach() for name, value in buffers.items()},
        )

    def head_loss(self, params: Tree, features: Tensor, data: Data) -> Tensor:
        """Return the training loss as a function of the head and of given features."""
        if not (self.head_is_linear and features.ndim == 2):
            return self.mean_loss(self._head_outputs(params, features, training=True), data)
        W, *b = self._of_head(params).values()
        outputs = (W @ features.T).T  # for many clients with few outputs, several times as fast as features @ W.T
        return self.mean_loss(outputs + b[0] if b else outputs, data)

    def mean_loss(self, outputs: Tensor, data: Data) -> Tensor:
        """Return the mean loss of given outputs over the examples."""
        return self.objective.mean_loss(outputs, data.y, data.mask)

    def module(self, params: Tree) -> nn.Module:
        """Return the model with these parameters, as a plain module in evaluation mode."""
        module = copy.deepcopy(self._eval_body)
        if self._head_name:
            module.set_submodule(self._head_name, copy.deepcopy(self._heads.module(self._of_head(params), False)))
        module.load_state_dict(pick(params, self.params + self.buffers), strict=False)
        return module

    def modules(self) -> list[nn.Module]:
        """Return all layers of the body."""
        return list(self._body.modules())

    # -- examples of the task's own, to find out what the model does

    def sample(self, size: int, *others: Tensor) -> Inputs:
        """Return a batch that repeats the example and ends in `others`. A graph is a ring of such nodes."""
        x = torch.cat([self._example] * size + [*others])
        if not self.is_graph:
            return x
        here = torch.arange(len(x), device=x.device)
        return Graph(x, torch.stack([torch.cat([here, here.roll(1)]), torch.cat([here.roll(1), here])]))

    def first_output(self, x: Inputs, seed: int = 0) -> Tensor:
        """Return the initial model's training output for the first example of a batch."""
        return self._initial_outputs(x, seed)[0]

    def _initial_outputs(self, x: Inputs, seed: int) -> Tensor:
        with torch.no_grad(), torch_seeded(seed):
            return self.training_outputs(self.initial, x)[0]

    def _is_random(self) -> bool:
        # an image of one colour can be the same after it was moved, but the other one is not
        x = self.sample(2, self._unlike())
        one, other = (self._initial_outputs(x, seed) for seed in (0, 1))
        return not torch.equal(one, other)

    def _mixes_examples(self) -> bool:
        one, other = (self.first_output(self.sample(1, second)) for second in (self._example, self._unlike()))
        return not torch.equal(one, other)

    def _modes_agree(self) -> bool:
        if self.is_random or self.mixes_examples or self.buffers:
            return False
        x = self.sample(1, self._unlike())
        with torch.no_grad():
            return torch.equal(self.body_vjp(self.initial, x)[0], self.features(self.initial, x))

    def _unlike(self) -> Tensor:
        """Return an input that differs from the example."""
        return (self._example == 0).to(self._example.dtype)

    def front(self, params: Tree, x: Tensor) -> tuple[Tensor, Tree]:
        """Return what the tail takes (N, D), in training mode, and the buffers as the pass leaves them."""
        return self._passed(self._front, self.front_params, params, x)

    def _features(self, params: Tree, x: Inputs) -> tuple[Tensor, Tree]:
        return self._passed(self._body, self.body, params, x)

    def _passed(self, module: nn.Module, names: tuple[str, ...], params: Tree, x: Inputs) -> tuple[Tensor, Tree]:
        buffers = {name: params[name].clone() for name in self.buffers}  # a module updates its buffers in place
        # BatchNorm refuses a single example. The same example twice has its mean, and no variance either.
        alone = self.mixes_examples and isinstance(x, Tensor) and len(x) == 1
        given = torch.cat([x, x]) if alone else x
        features: Tensor = functional_call(module, pick({**params, **buffers}, names + self.buffers), (given,))
        return features[:1] if alone else features, buffers

    def _is_of_head(self, name: str) -> bool:
        return bool(self._head_name) and name.startswith(f"{self._head_name}.")

    def _of_body(self, params: Tree) -> Tree:
        return pick(params, self.body + self.buffers)

    def _of_head(self, params: Tree) -> Tree:
        return {name[len(self._head_name) + 1 :]: params[name] for name in self.head}

    def _head_outputs(self, params: Tree, features: Tensor, training: bool) -> Tensor:
        own = self._of_head(params)
        outputs: Tensor = functional_call(self._heads.module(own, training), own, (features,))
        return outputs

    def _check_cut(self, values: Tree, outputs: Tensor, head: str) -> None:
        with torch.no_grad():  # an LSTM rounds differently while autograd records
            same = torch.equal(outputs, self.outputs(values, self.sample(1)))  # with filters as the model has them
        if not same:
            raise UserError(
                f"the model's output is not its head {head!r} applied to the rest; name the last layer as the head"
            )
