"""Modules taken apart and put together: where the body ends and the head begins."""

import copy

from torch import nn

from coterie.errors import UserError


def find_head(model: nn.Module, head: str) -> nn.Module:
    """The submodule of that name, which must have its parameters to itself."""
    if head not in (names := [name for name, _ in model.named_modules() if name]):
        raise UserError(f"the model has no submodule {head!r} to be its head; it has: {', '.join(names)}")
    everything = list(model.named_parameters(remove_duplicate=False))
    of_head = {value: name for name, value in everything if name.startswith(f"{head}.")}
    for name, value in everything:
        if value in of_head and not name.startswith(f"{head}."):
            raise UserError(
                f"{of_head[value]} of the head is tied to {name} of the body, and a head is drawn, sized and trained "
                'on its own: give it a parameter of its own, or let all of the model be body with head=""'
            )
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


def cut(model: nn.Module, head: str) -> tuple[nn.Module, nn.Module]:
    """Copies of the body and of the head."""
    if not head:
        return copy.deepcopy(model), nn.Identity()
    body = copy.deepcopy(model)
    body.set_submodule(head, nn.Identity())
    return body, copy.deepcopy(find_head(model, head))


def last_linear(module: nn.Module, head: str) -> str | None:
    """The name of the layer of a head that gives the outputs."""
    linear = [name for name, child in module.named_modules() if isinstance(child, nn.Linear)]
    if next(module.buffers(), None) is not None:
        raise UserError(f"the head {head!r} has buffers (a BatchNorm?); buffers belong in the body")
    if head and not linear:
        raise UserError(f"the head {head!r} has no nn.Linear layer, so it cannot be sized to a client's classes")
    return linear[-1] if linear else None
