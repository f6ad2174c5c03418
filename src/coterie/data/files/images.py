"""Images as arrays with values in 0..1: (H, W) for greyscale, (3, H, W) for colour."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from coterie.errors import UserError

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGES = (".png", ".jpg", ".jpeg")
_GREY, _COLOUR = ("1", "L", "LA"), ("P", "RGB", "RGBA", "CMYK", "YCbCr")


def read_image(client: str, path: Path, size: tuple[int, int] | None, grey: bool) -> NDArray[np.float32]:
    """Read an image file. Errors name the client and the file."""
    try:
        from PIL import Image
    except ImportError:
        raise UserError(f"reading {path} needs Pillow: pip install 'coterie[images]'") from None
    try:
        with Image.open(path) as image:
            return pixels(image, size, grey)
    except UserError as error:
        raise UserError(f"client {client!r}: {path}: {error}") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        raise UserError(f"client {client!r}: {path} is not an image, or is damaged") from None


def pixels(image: "Image", size: tuple[int, int] | None = None, grey: bool = False) -> NDArray[np.float32]:
    """Convert a Pillow image to an array. `size` is (height, width)."""
    if image.mode not in _GREY + _COLOUR:
        raise UserError(f"pixel format {image.mode!r} is not supported; save the image with 8 bits per channel")
    flat: Any = image.convert("L" if grey or image.mode in _GREY else "RGB")
    if size is not None:
        flat = flat.resize(size[::-1])
    values = np.asarray(flat, dtype=np.float32) / np.float32(255)
    return values if values.ndim == 2 else values.transpose(2, 0, 1)
