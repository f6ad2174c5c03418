import gzip
import lzma
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from coterie.data.files.idx import read, read_integers, read_labelled
from coterie.errors import UserError

IMAGES = np.arange(3 * 4 * 5, dtype=np.uint8).reshape(3, 4, 5)


def idx(array: NDArray[np.uint8], kind: int = 0x08) -> bytes:
    header = struct.pack(f">HBB{array.ndim}I", 0, kind, array.ndim, *array.shape)
    return header + array.tobytes()


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress], ids=["plain", "gzip", "xz"])
@pytest.mark.parametrize("name", ["images", "images.gz"])
def test_reads_what_was_written_whatever_its_name(tmp_path: Path, name: str, pack: Callable[[bytes], bytes]) -> None:
    array = read(write(tmp_path / name, pack(idx(IMAGES))), ndim=3)
    assert array.dtype == np.uint8
    np.testing.assert_array_equal(array, IMAGES)


def flip_middle(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 0xFF]) + content[middle + 1 :]


GOOD = idx(IMAGES)
ZIPPED = gzip.compress(GOOD, mtime=0)
XZ = lzma.compress(GOOD)
CORRUPTIONS = {
    "empty file": (b"", "ends inside its header, after 0 bytes"),
    "cut in the header": (GOOD[:10], "ends inside its header, after 10 bytes"),
    "cut in the elements": (GOOD[:-1], r"declares 60 bytes for shape \(3, 4, 5\) but contains 59"),
    "trailing bytes": (GOOD + b"\0", r"declares 60 bytes for shape \(3, 4, 5\) but contains 61"),
    "absurd shape": (GOOD[:4] + b"\xff" * 12 + GOOD[16:], f"declares {(2**32 - 1) ** 3} bytes"),
    "wrong magic": (b"\x89PNG" + GOOD[4:], "not an IDX file .*89 50 4e 47"),
    "other element type": (idx(IMAGES, kind=0x0D), "type 0x0d, expected 0x08"),
    "other dimensions": (idx(IMAGES.reshape(3, 20)), "2 dimensions, expected 3"),
    "gzip cut in the header": (ZIPPED[:5], "gzip stream is cut short"),
    "gzip cut in the middle": (ZIPPED[:-20], "gzip stream is cut short"),
    "gzip with a flipped byte": (flip_middle(ZIPPED), "gzip stream is corrupt"),
    "gzip with a wrong checksum": (ZIPPED[:-8] + b"\0" * 4 + ZIPPED[-4:], "gzip stream is corrupt .*CRC"),
    "gzip with bytes after it": (ZIPPED + b"junk", "gzip stream is corrupt"),
    "xz cut in the middle": (XZ[:-20], "xz stream is cut short"),
    "xz with a flipped byte": (flip_middle(XZ), "xz stream is corrupt"),
    "gzip of a cut file": (gzip.compress(GOOD[:-1]), "but contains 59"),
}


@pytest.mark.parametrize(("content", "reason"), CORRUPTIONS.values(), ids=CORRUPTIONS.keys())
def test_damage_is_named_with_the_file_and_the_remedy(tmp_path: Path, content: bytes, reason: str) -> None:
    path = write(tmp_path / "images", content)
    with pytest.raises(UserError, match=reason) as caught:
        read(path, ndim=3)
    assert str(path) in str(caught.value)
    assert str(caught.value).endswith("delete it and get a new copy")


def test_a_folder_in_place_of_the_file_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        read(tmp_path, ndim=3)


@pytest.mark.parametrize(
    ("labels", "size", "reason"),
    [
        ([0, 9], (4, 5), "has 3 images but .*labels has 2 labels; delete both"),
        ([0, 9, 10], (4, 5), r"label 10 at row 2 is outside 0\.\.9; delete it"),
        ([0, 9, 1], (28, 28), "its images are 4x5, expected 28x28; delete it"),
    ],
    ids=["counts differ", "label out of range", "wrong image size"],
)
def test_images_and_labels_must_agree(tmp_path: Path, labels: list[int], size: tuple[int, int], reason: str) -> None:
    images = write(tmp_path / "images", idx(IMAGES))
    classes = write(tmp_path / "labels", idx(np.array(labels, dtype=np.uint8)))
    with pytest.raises(UserError, match=reason):
        read_labelled(images, classes, size, num_classes=10)


def test_images_and_labels_that_agree(tmp_path: Path) -> None:
    images = write(tmp_path / "images", idx(IMAGES))
    classes = write(tmp_path / "labels", idx(np.array([9, 0, 4], dtype=np.uint8)))
    x, y = read_labelled(images, classes, (4, 5), num_classes=10)
    np.testing.assert_array_equal(x, IMAGES)
    assert y.tolist() == [9, 0, 4]


def test_integers_keep_their_sign_and_size(tmp_path: Path) -> None:
    rows = np.array([[1, -2], [70000, 3]], dtype=">i4")
    header = struct.pack(">HBB2I", 0, 0x0C, 2, 2, 2)
    path = write(tmp_path / "labels", header + rows.tobytes())
    assert read_integers(path, ndim=2).tolist() == [[1, -2], [70000, 3]]
    with pytest.raises(UserError, match=r"declares 16 bytes for shape \(2, 2\) but contains 12"):
        read_integers(write(path, header + rows.tobytes()[:-4]), ndim=2)
    with pytest.raises(UserError, match=r"type 0x0c, expected 0x08 \(unsigned byte\)"):
        read(write(path, header + rows.tobytes()), ndim=2)
