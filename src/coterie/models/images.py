"""Images as convolutions take them."""

from torch import nn

from coterie.errors import UserError


def channels_first(model: str, shape: tuple[int, ...], smallest: int = 1) -> tuple[list[nn.Module], int, int, int]:
    """(layers that bring a batch into the form (N, C, H, W), C, H, W), for images with such sides at least."""
    if len(shape) not in (2, 3) or min(shape[-2:]) < smallest:
        least = f" of at least {smallest} x {smallest} pixels" if smallest > 1 else ""
        raise UserError(
            f"the model {model} takes images{least}, as (H, W) or (C, H, W); these inputs have the shape {shape}"
        )
    channels, height, width = shape if len(shape) == 3 else (1, *shape)
    return [nn.Unflatten(1, (1, height))] if len(shape) == 2 else [], channels, height, width
