"""Input layers for convolutional networks."""

from torch import nn

from coterie.errors import UserError


def channels_first(model: str, shape: tuple[int, ...], smallest: int = 1) -> tuple[list[nn.Module], int, int, int]:
    """Return layers that convert a batch of images to (N, C, H, W), followed by C, H and W.

    Raise a UserError if the inputs are not images, or have a side of fewer than `smallest` pixels.
    """
    if len(shape) not in (2, 3) or min(shape[-2:]) < smallest:
        least = f" of at least {smallest} x {smallest} pixels" if smallest > 1 else ""
        raise UserError(
            f"the model {model} takes images{least}, as (H, W) or (C, H, W), but these inputs have shape {shape}"
        )
    channels, height, width = shape if len(shape) == 3 else (1, *shape)
    return [nn.Unflatten(1, (1, height))] if len(shape) == 2 else [], channels, height, width
