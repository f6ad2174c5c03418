"""Input layers for convolutional networks."""

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

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


class CropAndFlip(nn.Module):
    """Moves and mirrors images at random in training, and returns them as they are in use.

    An image is moved by up to `margin` pixels in both directions, and what appears at its edges is 0. It is mirrored
    from left to right in half of all cases. The draws are those of torch's generator, as with dropout.
    """

    def __init__(self, margin: int) -> None:
        super().__init__()
        self.margin = margin

    def forward(self, x: Tensor) -> Tensor:
        """Map images (N, C, H, W) to images of the same shape."""
        if not self.training:
            return x
        N, C, H, W = (torch.arange(size, device=x.device) for size in x.shape)
        down, right = torch.randint(2 * self.margin + 1, (2, len(N), 1), device=x.device)
        mirrored = torch.randint(2, (len(N), 1), device=x.device).bool()
        rows, columns = down + H, right + torch.where(mirrored, W.flip(0), W)
        wide = pad(x, [self.margin] * 4)
        return wide[N[:, None, None, None], C[:, None, None], rows[:, None, :, None], columns[:, None, None, :]]
