import io
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from coterie.data.sets.omniglot import Omniglot
from coterie.errors import UserError
from data.sets.published import need

Image = pytest.importorskip("PIL.Image", reason="pip install 'coterie[images]'")


def png(row: int, column: int, side: int = 105) -> bytes:
    """Return a PNG of white paper with a spot of ink."""
    paper = np.full((side, side), 255, dtype=np.uint8)
    paper[row : row + 12, column : column + 12] = 0
    out = io.BytesIO()
    Image.fromarray(paper).convert("1").save(out, "PNG")
    return out.getvalue()


def write(folder: Path, drawings: int = 8, spoiled: bytes | None = None) -> None:
    for archive, alphabets in (("images_background", ("Latin", "Greek")), ("images_evaluation", ("Tengwar",))):
        with zipfile.ZipFile(folder / f"{archive}.zip", "w") as opened:
            for alphabet in alphabets:
                for character in ("character01", "character02"):
                    for n in range(drawings):
                        content = spoiled if spoiled is not None else png(8 * n, 4)
                        opened.writestr(f"{archive}/{alphabet}/{character}/0001_{n:02}.png", content)


def test_characters_are_classes_and_alphabets_groups(tmp_path: Path) -> None:
    write(tmp_path)
    data = Omniglot(path=str(tmp_path), rotations=False).load()
    assert data.labels[:3] == ("Greek/character01", "Greek/character02", "Latin/character01")
    assert data.groups is not None
    assert data.groups.names == ("Greek", "Latin", "Tengwar")
    assert np.array_equal(data.groups.train, data.y_train // 2)
    assert np.bincount(data.y_train).tolist() == [6] * 6
    assert np.bincount(data.y_test).tolist() == [2] * 6
    assert (data.x_train.shape, data.x_train.dtype) == ((36, 28, 28), np.float32)
    assert (data.x_train.min(), data.x_train.max()) == (0, 1)
    assert (data.x_train.mean(axis=(1, 2)) < 0.03).all()  # ink is 1


def canonical(x) -> set[bytes]:
    """Represent each image by the smallest of its four rotations, so that all rotations of a drawing are equal."""
    return {min(np.rot90(image, k).tobytes() for k in range(4)) for image in x}


def test_drawings_are_split_before_they_are_turned(tmp_path: Path) -> None:
    write(tmp_path)
    data = Omniglot(path=str(tmp_path)).load()
    assert (len(data.x_train), len(data.x_test)) == (144, 48)
    for label in range(6):
        train, test = data.x_train[data.y_train == label], data.x_test[data.y_test == label]
        assert (len(canonical(train)), len(canonical(test))) == (6, 2)
        assert not canonical(train) & canonical(test)


def test_the_leaky_split_has_copies_on_both_sides(tmp_path: Path) -> None:
    write(tmp_path)
    data = Omniglot(path=str(tmp_path), split="leaky-rotations").load()
    assert (len(data.x_train), len(data.x_test)) == (144, 48)
    assert canonical(data.x_train) & canonical(data.x_test)


@pytest.mark.parametrize(
    ("spoiled", "reason"),
    [(b"GIF89a", r"0001_00\.png is not a PNG"), (png(0, 0, side=28), r"0001_00\.png is 28x28, expected 105x105")],
)
def test_damage_is_told_with_its_place(tmp_path: Path, spoiled: bytes, reason: str) -> None:
    write(tmp_path, spoiled=spoiled)
    with pytest.raises(UserError, match=reason):
        Omniglot(path=str(tmp_path)).load()


def test_an_archive_of_something_else_is_told(tmp_path: Path) -> None:
    write(tmp_path, drawings=0)
    with pytest.raises(UserError, match="has no files ALPHABET"):
        Omniglot(path=str(tmp_path)).load()


def test_without_pillow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(UserError, match=r"pip install 'coterie\[images\]'"):
        Omniglot(path=str(tmp_path)).load()


def test_published_facts() -> None:
    need("omniglot")
    data = Omniglot().load()
    assert data.groups is not None
    assert (len(data.labels), len(data.groups.names)) == (1623, 50)
    assert (data.x_train.shape, data.x_test.shape) == ((97380, 28, 28), (32460, 28, 28))
    assert (np.bincount(data.y_train) == 60).all()
    assert (np.bincount(data.y_test) == 20).all()
    characters = [len(np.unique(data.y_train[data.groups.train == alphabet])) for alphabet in range(50)]
    assert (min(characters), max(characters)) == (14, 55)
    assert (data.x_train.mean(dtype=np.float64), data.x_train.std(dtype=np.float64)) == pytest.approx(
        (0.0805, 0.2612), abs=5e-4
    )
