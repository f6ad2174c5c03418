"""Images as arrays: (H, W) if grey, (3, H, W) if not, in 0..1."""

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
    try:
        from PIL import Image
    except ImportError:
        raise UserError(f"to read {path}, Coterie needs Pillow: pip install 'coterie[images]'") from None
    try:
        with Image.open(path) as image:
            return pixels(image, size, grey)
    except UserError as error:
        raise UserError(f"client {client!r}: {path}: {error}") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        raise UserError(f"client {client!r}: {path} is not an image, or is damaged") from None


def pixels(image: "Image", size: tuple[int, int] | None = None, grey: bool = False) -> NDArray[np.float32]:
    """Of a Pillow image."""
    if image.mode not in _GREY + _COLOUR:
        raise UserError(f"pixels of kind {image.mode!r}; save it with 8 bits a channel")
    flat: Any = image.convert("L" if grey or image.mode in _GREY else "RGB")
    if size is not None:
        flat = flat.resize(size[::-1])
    values = np.asarray(flat, dtype=np.float32) / np.float32(255)
    return values if values.ndim == 2 else values.transpose(2, 0, 1)
