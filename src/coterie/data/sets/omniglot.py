"""Omniglot: B. M. Lake, R. Salakhutdinov, J. B. Tenenbaum, "Human-level concept learning through probabilistic
program induction", Science 350, 2015. Prepared as in PFLEGO, arXiv:2202.09848, Section 4.1 and the authors' code.
"""

import io
import re
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.core.data import Index
from coterie.data.examples import Examples, Groups
from coterie.data.files import limits
from coterie.data.files.fetch import File
from coterie.data.files.locate import locate
from coterie.data.files.unpack import damaged, members
from coterie.data.sets.dataset import Dataset
from coterie.data.sets.split import split
from coterie.errors import UserError
from coterie.settings import settings

_FOLDER = "https://raw.githubusercontent.com/brendenlake/omniglot/master/python"
_FILES = (
    File("images_background.zip", (f"{_FOLDER}/images_background.zip",), "md5:68d2efa1b9178cc56df9314c21c6e718"),
    File("images_evaluation.zip", (f"{_FOLDER}/images_evaluation.zip",), "md5:6b91aef0f799c5bb55b94e3f2daec811"),
)
_DRAWING = re.compile(r"(?:^|/)[^/]+/character\d+/\d+_\d+\.png$")
_SIDE = 105
_SIZE = 28
_AT_ONCE = 1000
"""Number of drawings in their original size in memory."""

Images = NDArray[np.float32]


@settings
class Omniglot(Dataset):
    """Handwritten characters, 28x28: 1623 of 50 alphabets, each drawn by 20 people, 15 for training, 5 for testing."""

    usual_partition: ClassVar[str] = "natural"
    usual_model: ClassVar[str] = "conv4"

    path: str | None = None
    """Folder with images_background.zip and images_evaluation.zip. Default: search $COTERIE_DATA/omniglot and the
    user's cache, then download."""
    rotations: bool = True
    """Whether to add copies of each drawing rotated by 90, 180 and 270 degrees, as examples of the same character."""
    split: Literal["drawings", "leaky-rotations"] = "drawings"
    """Unit of the split into 75 % for training and 25 % for testing. "drawings" splits before drawings are rotated.
    "leaky-rotations" splits the rotated images, as in the PFLEGO authors' code, so most test images are rotated copies
    of training images."""

    def files(self) -> list[Path]:
        return locate("omniglot", _FILES, "https://github.com/brendenlake/omniglot", self.path)

    def load(self) -> Examples:
        x, y, characters = _drawings(self.files())
        alphabets = sorted({alphabet for alphabet, _ in characters})
        alphabet_of = np.array([alphabets.index(alphabet) for alphabet, _ in characters])
        if self.split == "leaky-rotations":
            x, y = self._turned(x, y)
            train, test = split(y, share=0.25)
            (x_train, y_train), (x_test, y_test) = (x[train], y[train]), (x[test], y[test])
        else:
            train, test = split(y, share=0.25)
            (x_train, y_train), (x_test, y_test) = self._turned(x[train], y[train]), self._turned(x[test], y[test])
        labels = tuple(f"{alphabet}/{character}" for alphabet, character in characters)
        groups = Groups(alphabet_of[y_train], alphabet_of[y_test], tuple(alphabets))
        return Examples(x_train, y_train, x_test, y_test, labels, groups)

    def _turned(self, x: Images, y: Index) -> tuple[Images, Index]:
        if not self.rotations:
            return x, y
        return np.concatenate([np.rot90(x, turns, axes=(1, 2)) for turns in range(4)]), np.tile(y, 4)


def _drawings(archives: list[Path]) -> tuple[Images, Index, list[tuple[str, str]]]:
    """Read images, labels and the (alphabet, character) of each label. Ink is 1 and paper is 0.

    Labels are numbered in the order of alphabets and character names.
    """
    images: list[Images] = []
    names: list[tuple[str, str]] = []
    seen: set[str] = set()
    for archive in archives:
        before = len(seen)
        ink: list[NDArray[np.bool_]] = []
        for name, png in members(archive, wanted=_DRAWING.search):
            alphabet, character, _ = place = name.split("/")[-3:]
            if "/".join(place) in seen:
                raise damaged(archive, f"it has a second drawing {'/'.join(place)}")
            seen.add("/".join(place))
            names.append((alphabet, character))
            ink.append(_ink(archive, name, png))
            if len(ink) == _AT_ONCE:
                images.append(_resized(np.stack(ink)))
                ink.clear()
            # Six times: as they are, after the split, and in four rotations.
            limits.check(6 * 4 * _SIZE**2 * len(seen), f"{len(seen):,} drawings", *archives)
        if ink:
            images.append(_resized(np.stack(ink)))
        if len(seen) == before:
            raise damaged(archive, "it has no files ALPHABET/characterNN/NNNN_NN.png")
    characters = sorted(set(names))
    number = {name: n for n, name in enumerate(characters)}
    return np.concatenate(images), np.array([number[name] for name in names]), characters


def _ink(archive: Path, name: str, png: bytes) -> NDArray[np.bool_]:
    try:
        from PIL import Image
    except ImportError:
        raise UserError("reading omniglot's PNG images needs Pillow: pip install 'coterie[images]'") from None
    try:
        with Image.open(io.BytesIO(png), formats=["PNG"]) as image:
            if image.size != (_SIDE, _SIDE):
                raise damaged(archive, f"{name} is {image.size[0]}x{image.size[1]}, expected {_SIDE}x{_SIDE}")
            return ~np.asarray(image.convert("1"))
    except (OSError, SyntaxError, ValueError, EOFError, IndexError, Image.DecompressionBombError) as error:
        if isinstance(error, UserError):
            raise
        raise damaged(archive, f"{name} is not a PNG image ({error})") from error


def _resized(ink: NDArray[np.bool_]) -> Images:
    """Resize images bilinearly. Each pixel depends on four neighbours (no antialiasing), as in the authors' code."""
    part = torch.from_numpy(ink).float()[:, None]
    small = torch.nn.functional.interpolate(part, (_SIZE, _SIZE), mode="bilinear", align_corners=False)
    return small[:, 0].numpy()
