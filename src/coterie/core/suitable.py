"""What a user's module must satisfy, with messages that say what to change."""

import copy
from collections.abc import Callable, Sequence
from types import FunctionType, MethodType

import torch
from torch import Tensor, nn

from coterie.core.data import Graph, Inputs
from coterie.core.tree import Tree
from coterie.errors import UserError
from coterie.streams import torch_seeded


def copied(model: nn.Module) -> nn.Module:
    """Return a copy of a module. Raises UserError for kinds of modules that cannot be used."""
    if isinstance(model, torch.jit.ScriptModule):
        raise UserError("the model is a TorchScript module, which cannot be cut into body and head; pass the nn.Module")
    if any(isinstance(value, nn.UninitializedParameter) for value in model.parameters()):
        raise UserError("the model has lazy layers that have no size yet; call it once on a batch before training")
    if any(getattr(part, "max_norm", None) is not None for part in model.modules()):
        raise UserError(
            "the model has an embedding with max_norm, which changes its weights in a forward pass; remove max_norm "
            "and normalize in the module's forward instead"
        )
    for name, value in model.named_parameters():
        if value.requires_grad and (value._backward_hooks or getattr(value, "_post_accumulate_grad_hooks", None)):
            raise UserError(
                f"the parameter {name} has a hook on its gradient, but each client trains a tensor of its own, on "
                "which it would not run; remove it and change the gradient in a module's forward or backward hook"
            )
    for name, part in model.named_modules():
        own = vars(part).get("forward")
        if isinstance(own, FunctionType) or (isinstance(own, MethodType) and own.__self__ is not part):
            raise UserError(
                f"the forward of the module {name!r} was replaced by a function that may hold on to the parameters of "
                "one model, but each client has its own; use types.MethodType(function, module), or define a class"
            )
    try:
        return copy.deepcopy(model)
    except RuntimeError as error:
        raise UserError(
            f"the model cannot be copied: {error}. If it uses torch.nn.utils.weight_norm, use "
            "torch.nn.utils.parametrizations.weight_norm instead"
        ) from None


def first_outputs(model: nn.Module, x: Inputs) -> Tensor:
    """Return the outputs of a module for one example. They must be one tensor of shape (N, ..., outputs)."""
    example = x.nodes if isinstance(x, Graph) else x
    try:
        with torch.no_grad():
            outputs = model(x)
    except (AttributeError, IndexError, RuntimeError, TypeError) as error:
        shape = "x".join(map(str, example.shape[1:]))
        kind = "graphs with nodes" if isinstance(x, Graph) else "inputs"
        embeds = any(isinstance(part, nn.Embedding) for part in model.modules())
        tokens = "; if the inputs are tokens, set tokens=True" if embeds and example.is_floating_point() else ""
        raise UserError(
            f"the model does not take {kind} of shape {shape} and type {example.dtype}: {error}{tokens}"
        ) from None
    if not isinstance(outputs, Tensor) or outputs.ndim < 2:
        shape = f"one of shape {tuple(outputs.shape)}" if isinstance(outputs, Tensor) else ""
        raise UserError(
            "the model must return one tensor of shape (N, ..., outputs), not "
            f"{shape or type(outputs).__name__}; wrap it in a module that does"
        )
    if outputs.dtype not in (torch.float32, torch.float64):
        raise UserError(
            f"the model returns {outputs.dtype}, but losses need float32 or float64; convert the outputs with .float() "
            "in the module's forward"
        )
    return outputs


def check_gradient(
    initial: Tree, params: Sequence[str], body: Sequence[str], outputs: Callable[[Tree], Tensor]
) -> None:
    """Check that a model can be trained: a dense gradient reaches its parameters."""
    leaves = {name: initial[name].detach().clone().requires_grad_() for name in params}
    if not leaves:
        raise UserError("the model has no parameters to train: it has none, or all have requires_grad=False")
    try:
        with torch.enable_grad(), torch_seeded(0):
            g = torch.autograd.grad(outputs({**initial, **leaves}).sum(), list(leaves.values()), allow_unused=True)
    except RuntimeError as error:
        raise UserError(f"the model cannot be trained: PyTorch cannot differentiate it: {error}") from None
    found = dict(zip(leaves, g, strict=True))
    if body and all(found[name] is None for name in body):
        raise UserError(
            "no gradient reaches the body of the model. If its forward runs under torch.no_grad(), remove that; to "
            "keep the body as it is, set requires_grad_(False) on its parameters"
        )
    if sparse := [name for name, value in found.items() if value is not None and value.is_sparse]:
        raise UserError(f"{sparse[0]} has sparse gradients, which cannot be averaged; set sparse=False in its layer")
