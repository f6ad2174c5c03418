"""Where the body of a model ends and its head begins, and how personal heads are drawn and sized.

A head is always used through its own forward pass. One plain `nn.Linear` is a special case: its gradient is known in
closed form, and it is drawn faster. A head gets another number of outputs through its last linear layer:

- An `nn.Linear`, or a class derived from it, is copied with a new weight and bias, drawn by its `reset_parameters`.
- Parametrizations such as `weight_norm` are registered again on the new weight.
- A layer with frozen parameters, and a head without a linear layer, keep their own number of outputs.
"""

import copy
import math
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor, nn
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.nn.utils import parametrize

from coterie.core.chain import is_altered
from coterie.core.tree import Tree
from coterie.errors import UserError
from coterie.streams import torch_seeded

HeadInit = Literal["default", "uniform", "orthogonal"]
KAIMING = math.sqrt(3) * nn.init.calculate_gain("leaky_relu", math.sqrt(5))
"""Numerator of the bound of nn.Linear's initial weights, over the square root of its inputs: one, up to rounding."""


class Heads:
    """Heads like a given one, with any number of outputs.

    Args:
        head: the head of a model.
        name: name of the head in the model, which the names of its parameters begin with.
        init: how the values of new heads are drawn.
        features: one row of features, which the head takes.
    """

    def __init__(self, head: nn.Module, name: str, init: HeadInit, features: Tensor) -> None:
        self._name, self._init, self._features = name, init, features
        self._modes = {training: copy.deepcopy(head).train(training) for training in (True, False)}
        self._generator = torch.Generator()
        if init == "orthogonal" and any(parametrize.is_parametrized(part) for part in head.modules()):
            raise UserError(
                f'model.head_init = "orthogonal" cannot make the weight of the head {name!r} orthogonal: the head is '
                "parametrized (weight_norm or similar) and computes that weight from other parameters; remove the "
                "parametrization, or use another head_init"
            )
        self.is_linear = _is_plain(head)
        """Whether the head is one plain linear layer, so that its gradient is known in closed form."""
        self._own = self._width(self._modes[False])
        self._telling = self._find_telling()

    def draw(self, num_outputs: int, seed: int) -> Tree:
        """Draw a head with this number of outputs, on the CPU. It is drawn in float32 whatever the model's type is."""
        prefix = f"{self._name}." if self._name else ""
        if self.is_linear:
            drawn = self._linear(num_outputs, seed)
        else:
            head = copy.deepcopy(self.sized(num_outputs, True)).to("cpu", torch.float32)
            with torch_seeded(seed):
                for part in head.modules():
                    _draw_again(part)
                values = {name: value.detach() for name, value in head.named_parameters() if value.requires_grad}
                drawn = {name: self._redrawn(value, torch.default_generator) for name, value in values.items()}
        return {prefix + name: value.to(self._features.dtype) for name, value in drawn.items()}

    def orthogonal(self, params: Tree) -> Tree:
        """Return a head of the model's own size with orthonormal rows in each matrix, or columns if it has more rows.

        These are the matrices that layers use. If a parametrization knows no parameters that give such a matrix, the
        parameters themselves become orthonormal. Biases stay as they are.
        """
        head = copy.deepcopy(self._modes[True])
        prefix = f"{self._name}." if self._name else ""
        head.load_state_dict({name.removeprefix(prefix): value for name, value in params.items()}, strict=False)
        with torch.no_grad():
            for layer in head.modules():
                for name, value in _used(layer).items():
                    if value.ndim == 2:
                        _set(layer, name, _orthonormal(value))
        return {prefix + name: value.detach() for name, value in head.named_parameters()}

    def module(self, params: Tree, training: bool) -> nn.Module:
        """Return the head that fits parameters of this size, named as in the head itself. Its values do not matter."""
        if self._telling is None:
            return self._modes[training]
        name, axis = self._telling
        return self.sized(params[name].shape[axis], training)

    @lru_cache(maxsize=1024)  # noqa: B019 - it lives as long as its run
    def sized(self, num_outputs: int, training: bool) -> nn.Module:
        """Return a head with this number of outputs. Values that depend on the number have no meaning."""
        if num_outputs == self._own:
            return self._modes[training]
        with temporarily_clear_interpreter_stack(), torch_seeded(0):  # it may be needed within grad or vmap first
            head = with_outputs(self._modes[training], num_outputs, self._name)
            try:
                follows = self.is_linear or self._width(head) == num_outputs
            except UserError:
                follows = False
        if not follows:
            raise _cannot_resize(self._name, num_outputs, "its forward pass does not follow its last linear layer")
        return head

    def _width(self, head: nn.Module) -> int:
        """Return the number of outputs of a head."""
        try:
            with torch.no_grad(), torch_seeded(0):
                return int(head(self._features).shape[-1])
        except (RuntimeError, TypeError, IndexError, AttributeError) as error:
            raise UserError(
                f"the head {self._name!r} does not take the features of shape {tuple(self._features.shape)} that the "
                f"rest of the model gives: {error}; name the last layer as the head"
            ) from None

    def _find_telling(self) -> tuple[str, int] | None:
        """Return a parameter and its axis whose length tells the number of outputs; None if that cannot change."""
        own = {name: value.shape for name, value in self._modes[True].named_parameters() if value.requires_grad}
        try:
            wider = dict(self.sized(self._own + 1, True).named_parameters())
        except UserError:
            return None
        changed = ((name, axis) for name in own for axis in range(len(own[name])) if own[name] != wider[name].shape)
        return next((name, axis) for name, axis in changed if own[name][axis] != wider[name].shape[axis])

    def _linear(self, num_outputs: int, seed: int) -> Tree:
        """Draw the same numbers as `nn.Linear.reset_parameters`, several times as fast: a round has many clients."""
        layer = self._modes[True]
        assert isinstance(layer, nn.Linear)
        random, inputs = self._generator.manual_seed(seed), layer.in_features
        bound = KAIMING / math.sqrt(inputs)
        drawn = {"weight": torch.empty(num_outputs, inputs).uniform_(-bound, bound, generator=random)}
        if layer.bias is not None:
            bound = 1 / math.sqrt(inputs)
            drawn["bias"] = torch.empty(num_outputs).uniform_(-bound, bound, generator=random)
        return {name: self._redrawn(value, random) for name, value in drawn.items()}

    def _redrawn(self, value: Tensor, random: torch.Generator) -> Tensor:
        """Draw the values in place as `init` says."""
        if self._init == "uniform":
            return value.uniform_(0, 1, generator=random)
        if self._init == "orthogonal":
            return nn.init.orthogonal_(value, generator=random) if value.ndim > 1 else value.zero_()
        return value


def _used(layer: nn.Module) -> Tree:
    """Return the tensors that a layer itself uses, whether they are parameters or computed from parameters."""
    if isinstance(layer, parametrize.ParametrizationList):
        return {}
    names = [name for name, _ in layer.named_parameters(recurse=False)]
    if parametrize.is_parametrized(layer):
        names += layer.parametrizations.keys()  # type: ignore[operator, union-attr]
    return {name: getattr(layer, name) for name in names}


def _set(layer: nn.Module, name: str, value: Tensor) -> None:
    """Give a layer a tensor to use. A parametrization may know which parameters give it."""
    if not parametrize.is_parametrized(layer, name):
        layer.get_parameter(name).copy_(value)
        return
    try:
        setattr(layer, name, value)
    except (NotImplementedError, RuntimeError):
        layer.parametrizations[name].original.copy_(value)  # type: ignore[index, union-attr]


def _orthonormal(value: Tensor) -> Tensor:
    """Make the rows of a matrix orthonormal, or its columns if it has more rows than columns."""
    tall = value.shape[0] > value.shape[1]
    Q: Tensor = torch.linalg.qr(value if tall else value.T).Q
    return Q if tall else Q.T.contiguous()


def _is_plain(head: nn.Module) -> bool:
    trained = all(value.requires_grad for value in head.parameters())
    return type(head) is nn.Linear and trained and not is_altered(head)  # a parametrized layer has a class of its own


def _draw_again(part: nn.Module) -> None:
    """Draw the parameters of one module, if it knows how, and not those of the modules inside it."""
    if not parametrize.is_parametrized(part):
        if callable(reset := getattr(part, "reset_parameters", None)):
            reset()
        return
    plain, parametrizations = _stripped(part)
    if callable(reset := getattr(plain, "reset_parameters", None)):
        reset()
    _parametrize(plain, parametrizations)
    with torch.no_grad():
        for name, value in part.named_parameters():
            value.copy_(plain.get_parameter(name))


def _parametrize(layer: nn.Module, parametrizations: dict[str, list[nn.Module]]) -> None:
    for tensor, parts in parametrizations.items():
        for part in parts:
            parametrize.register_parametrization(layer, tensor, part)


def _stripped(layer: nn.Module) -> tuple[nn.Module, dict[str, list[nn.Module]]]:
    """Return a copy of a layer without its parametrizations, and these by the name of their tensor.

    `remove_parametrizations` cannot be used: it changes the layer's class, which all copies of the layer share.
    """
    plain = copy.deepcopy(layer)
    if not parametrize.is_parametrized(layer):
        return plain, {}
    parametrizations = plain._modules.pop("parametrizations")
    assert isinstance(parametrizations, nn.ModuleDict)
    plain.__class__ = type(layer).__bases__[0]
    for name in parametrizations:
        plain.register_parameter(name, nn.Parameter(getattr(layer, name).detach().clone()))
    return plain, {name: [*parts] for name, parts in parametrizations.items()}  # type: ignore[misc]


def with_outputs(module: nn.Module, num_outputs: int, head: str = "head") -> nn.Module:
    """Return a copy whose last linear layer has `num_outputs` outputs. A layer of another size is drawn again.

    Raises UserError if a layer of another size cannot be built; `head` is the name to mention then.
    """
    if (name := last_linear(module)) is None:
        raise _cannot_resize(head, num_outputs, "it has no nn.Linear layer")
    last = module.get_submodule(name)
    assert isinstance(last, nn.Linear)
    if last.out_features == num_outputs:
        return copy.deepcopy(module)
    if not all(value.requires_grad for value in last.parameters()):
        raise _cannot_resize(head, num_outputs, "its last linear layer is frozen (requires_grad=False)")
    tied = {
        id(value) for key, value in module.named_parameters(remove_duplicate=False) if not key.startswith(f"{name}.")
    }
    if name and any(id(value) in tied for value in last.parameters()):
        raise _cannot_resize(head, num_outputs, "its last linear layer shares a parameter with another layer")
    fresh, parametrizations = _stripped(last)
    assert isinstance(fresh, nn.Linear)
    for other, value in fresh.named_parameters():
        if other not in ("weight", "bias") and last.out_features in value.shape:
            raise _cannot_resize(head, num_outputs, f"its parameter {other!r} has one value for each output")
    try:
        fresh.weight = nn.Parameter(last.weight.new_empty(num_outputs, last.in_features))
        if last.bias is not None:
            fresh.bias = nn.Parameter(last.weight.new_empty(num_outputs))
        fresh.out_features = num_outputs
        fresh.reset_parameters()
        _parametrize(fresh, parametrizations)
    except (RuntimeError, ValueError, NotImplementedError) as error:
        raise _cannot_resize(head, num_outputs, str(error)) from None
    if not name:
        return fresh
    sized = copy.deepcopy(module)
    sized.set_submodule(name, fresh)
    return sized


def can_resize(head: nn.Module) -> bool:
    """Return whether a head ends in a linear layer that is trained, so that it can be given other outputs."""
    name = last_linear(head)
    return name is not None and all(value.requires_grad for value in head.get_submodule(name).parameters())


def _cannot_resize(head: str, num_outputs: int, why: str) -> UserError:
    return UserError(
        f"the head {head!r} cannot be given {num_outputs} outputs: {why}. Build it with that number of outputs, with "
        'model.labels = "global" if all clients have the same head, or end it in a trained nn.Linear'
    )


def find_head(model: nn.Module, head: str) -> nn.Module:
    """Return the submodule called `head`. It must not share parameters with the rest of the model."""
    if head not in (names := [name for name, _ in model.named_modules() if name]):
        available = f"available: {', '.join(names)}" if names else "it has no submodules"
        raise UserError(
            f'the model has no submodule {head!r} to use as its head; {available}; head="" makes all of it the body'
        )
    everything = list(model.named_parameters(remove_duplicate=False))
    of_head = {value: name for name, value in everything if name.startswith(f"{head}.")}
    for name, value in everything:
        if value in of_head and not name.startswith(f"{head}."):
            raise UserError(
                f"{of_head[value]} of the head is tied to {name} of the body, but a head is drawn, sized and trained "
                'separately: give it a parameter of its own, or make the whole model the body with head=""'
            )
    return model.get_submodule(head)


def cut(model: nn.Module, head: str) -> tuple[nn.Module, nn.Module]:
    """Return copies of the body and of the head."""
    if not head:
        return copy.deepcopy(model), nn.Identity()
    own = copy.deepcopy(find_head(model, head))
    if next(own.buffers(), None) is not None:
        raise UserError(f"the head {head!r} has buffers (a BatchNorm?); buffers belong in the body")
    body = copy.deepcopy(model)
    body.set_submodule(head, nn.Identity())
    return body, own


def last_linear(module: nn.Module) -> str | None:
    """Return the name of the last linear layer of a module, or None."""
    linear = [name for name, child in module.named_modules() if isinstance(child, nn.Linear)]
    return linear[-1] if linear else None
