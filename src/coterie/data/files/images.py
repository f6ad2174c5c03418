"""Images as arrays with values in 0..1: (H, W) for greyscale, (3, H, W) for colour."""

import struct
import warnings
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from coterie.data.files import limits
from coterie.errors import UserError

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGES = (".png", ".jpg", ".jpeg")
_GREY, _COLOUR = ("1", "L", "LA"), ("P", "RGB", "RGBA", "CMYK", "YCbCr")


def read_image(
    client: str, path: Path, size: tuple[int, int] | None, grey: bool, budget: limits.Budget
) -> NDArray[np.float32]:
    """Read an image file within a budget of memory. Errors name the client and the file."""
    try:
        from PIL import Image
    except ImportError:
        raise UserError(f"reading {path} needs Pillow: pip install 'coterie[images]'") from None
    try:
        with warnings.catch_warnings(action="ignore", category=Image.DecompressionBombWarning):
            opened = Image.open(path, formats=("PNG", "JPEG"))
        with opened as image:
            height, width = size or image.size[::-1]
            decoded = 8 * image.size[0] * image.size[1]
            what = f"an image of {image.size[0]:,} x {image.size[1]:,} pixels"
            limits.check(decoded + 24 * height * width, what, path)
            budget.spend(path, 8 * height * width * (1 if grey or image.mode in _GREY else 3), what)
            return pixels(image, size, grey)
    except UserError as error:
        raise UserError(f"client {client!r}: {path}: {error}") from None
    except Image.DecompressionBombError:
        raise UserError(f"client {client!r}: {path} has more pixels than Pillow can read safely; resize it") from None
    except (OSError, SyntaxError, ValueError, EOFError, IndexError, struct.error, zlib.error):
        raise UserError(f"client {client!r}: {path} is not a PNG or JPEG image, or is damaged") from None


def pixels(image: "Image", size: tuple[int, int] | None = None, grey: bool = False) -> NDArray[np.float32]:
    """Convert a Pillow image to an array. `size` is (height, width)."""
    if image.mode not in _GREY + _COLOUR:
        raise UserError(f"pixel format {image.mode!r} is not supported; save the image with 8 bits per channel")
    flat: Any = image.convert("L" if grey or image.mode in _GREY else "RGB")
    if size is not None:
        flat = flat.resize(size[::-1])
    values = np.asarray(flat, dtype=np.float32) / np.float32(255)
    return values if values.ndim == 2 else values.transpose(2, 0, 1)
