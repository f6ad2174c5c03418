"""Mistakes that users make in folders, and the errors they get."""

import contextlib
import sys
import zipfile

import numpy as np
import pytest

from coterie.data.federation import Federation
from coterie.errors import UserError
from data.own.make import write_images

X, Y = np.arange(8.0).reshape(4, 2), np.array([0, 0, 1, 1])


@pytest.fixture
def folder(tmp_path):
    """A folder with a good file for anna. Tests add a faulty file for ben."""
    np.savez(tmp_path / "anna.npz", x=X, y=Y)
    return tmp_path


def fails(folder, message, **options):
    with pytest.raises(UserError, match=message):
        Federation.from_folder(folder, **options)


def test_other_files_and_hidden_ones_do_not_matter(folder):
    np.savez(folder / "ben.npz", x=X, y=Y)
    before = Federation.from_folder(folder).fingerprint()
    (folder / "README.md").write_text("ours")
    (folder / ".DS_Store").write_text("")
    (folder / "__MACOSX").mkdir()
    assert Federation.from_folder(folder).fingerprint() == before


def test_a_folder_that_is_not_there(tmp_path):
    fails(tmp_path / "none", r"folder \S*none does not exist")


def test_a_folder_without_clients(tmp_path):
    fails(tmp_path, r"has no clients; it needs a folder or a file \(.npz, .csv, .parquet\) for each")


def test_a_client_that_comes_twice(folder):
    (folder / "anna").mkdir()
    fails(folder, "client 'anna' appears twice, as anna and anna.npz|as anna.npz and anna")


def test_several_files_of_one_client(folder):
    (folder / "ben").mkdir()
    for name in ("old", "new"):
        np.savez(folder / "ben" / name, x=X, y=Y)
    fails(folder, r"client 'ben': \S*ben has 2 data files; keep only one")


def test_clients_of_different_kinds(folder):
    (folder / "ben.csv").write_text("y,a\n1,2\n")
    fails(folder, "some clients have .csv and others .npz; use the same format for all clients")


# -- npz


def test_a_file_that_is_not_npz(folder):
    (folder / "ben.npz").write_bytes(b"nothing like it")
    fails(folder, r"client 'ben': \S*ben.npz is not an npz file")


def test_a_file_cut_short(folder):
    np.savez(folder / "ben.npz", x=X, y=Y)
    content = (folder / "ben.npz").read_bytes()
    (folder / "ben.npz").write_bytes(content[: len(content) // 2])
    fails(folder, r"client 'ben': \S*ben.npz is not an npz file, or is incomplete")


@pytest.mark.parametrize("compress", [np.savez, np.savez_compressed])
def test_a_flipped_byte(folder, compress):
    compress(folder / "ben.npz", x=X, y=Y)
    content = bytearray((folder / "ben.npz").read_bytes())
    with zipfile.ZipFile(folder / "ben.npz") as archive:
        place = archive.getinfo("x.npy").header_offset + (190 if compress is np.savez else 60)
    content[place] ^= 0xFF
    (folder / "ben.npz").write_bytes(content)
    fails(folder, r"client 'ben': \S*ben.npz is damaged")


@pytest.mark.parametrize("compress", [np.savez, np.savez_compressed])
def test_whichever_byte_is_flipped_nothing_else_is_raised(tmp_path, compress):
    compress(tmp_path / "ben.npz", x=X, y=Y)
    whole = (tmp_path / "ben.npz").read_bytes()
    for place in range(0, len(whole), 2):
        content = bytearray(whole)
        content[place] ^= 0xFF
        (tmp_path / "ben.npz").write_bytes(content)
        with contextlib.suppress(UserError):
            Federation.from_folder(tmp_path)


def test_pickled_objects_are_refused(folder):
    ran = []

    class Evil:
        def __reduce__(self):
            return ran.append, (1,)

    np.savez(folder / "ben.npz", x=X, y=np.array([Evil()] * 4, dtype=object))
    fails(folder, r"client 'ben': the array y of \S*ben.npz holds Python objects, not plain numbers")
    assert not ran


def test_a_bare_pickle_is_refused(folder):
    np.array([{}], dtype=object).dump(folder / "ben.npz")
    fails(folder, r"client 'ben': \S*ben.npz is not an npz file")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": X}, "needs arrays x and y, or x_train and y_train; found: x$"),
        ({"data": X, "labels": Y}, "found: data, labels$"),
        ({"x": X, "y": Y, "x_test": X}, "has only one of x_test and y_test"),
        ({"x": X, "y": Y[:3]}, r"4 rows in \S*ben.npz, x but 3 labels in \S*ben.npz, y"),
        ({"x": np.where(X == 5, np.nan, X), "y": Y}, r"ben.npz, x row 2 is not finite"),
        ({"x_train": X, "y_train": Y, "x_test": X, "y_test": Y + 1}, r"ben.npz, y_test row 2 has a label outside"),
        ({"x": X[:, :1], "y": Y}, r"ben.npz, x rows have shape \(1,\), but earlier rows have shape \(2,\)"),
        ({"x": X[:0], "y": Y[:0]}, "has no training example"),
    ],
)
def test_arrays_that_do_not_fit(folder, arrays, message):
    np.savez(folder / "ben.npz", **arrays)
    fails(folder, rf"client 'ben'.*{message}")


# -- tables


def test_tables_name_the_client_and_the_line(tmp_path):
    (tmp_path / "anna.csv").write_text("y,a,b\n1,2,3\n2,4,5\n")
    (tmp_path / "ben.csv").write_text("b,a,y\n3,2,1\n5,4,2\n\n7,6,x\n")
    assert Federation.from_folder(tmp_path, test=0).x.tolist() == [[2, 3], [4, 5], [2, 3], [4, 5], [6, 7]]
    assert Federation.from_folder(tmp_path).labels == ("1", "2", "x")
    (tmp_path / "ben.csv").write_text("b,a,y\n3,2,1\n5,4,2\n\n7,old,1\n")
    fails(tmp_path, r"client 'ben': \S*ben.csv line 5: column 'a' is not a number")
    (tmp_path / "ben.csv").write_text("b,y\n3,2\n")
    fails(tmp_path, r"ben.csv has no column 'a'; available: b, y")
    (tmp_path / "ben.csv").write_text("y,a,b,c\n3,2,1,1\n")
    fails(tmp_path, r"ben.csv has a column 'c', which \S*anna.csv does not have")
    assert Federation.from_folder(tmp_path, features=["b"]).x.shape[1:] == (1,)


# -- images


@pytest.fixture
def album(tmp_path):
    pytest.importorskip("PIL")
    for name in ("anna", "ben"):
        write_images(tmp_path / name, np.zeros((4, 5, 5), dtype=np.uint8), ["cat", "cat", "dog", "dog"])
    return tmp_path


def test_a_class_may_be_called_train(album):
    write_images(album / "ben", np.zeros((2, 5, 5), dtype=np.uint8), ["train", "train"])
    assert Federation.from_folder(album).labels == ("cat", "dog", "train")


def test_a_damaged_image(album):
    (album / "ben" / "cat" / "bad.png").write_bytes(b"\x89PNG and no more")
    fails(album, r"client 'ben': \S*bad.png is not a PNG or JPEG image, or is damaged")


def test_an_image_cut_short(album):
    write_images(album / "ben", np.random.default_rng(0).integers(0, 255, (1, 5, 5), dtype=np.uint8), ["cat"])
    whole = (album / "ben" / "cat" / "000.png").read_bytes()
    (album / "ben" / "cat" / "000.png").write_bytes(whole[:50])
    fails(album, r"client 'ben': \S*000.png is not a PNG or JPEG image, or is damaged")


def test_an_image_of_another_size(album):
    write_images(album / "ben", np.zeros((1, 5, 6), dtype=np.uint8), ["cow"])
    fails(album, r"client 'ben': \S*cow/000.png has shape \(5, 6\), but 000.png has shape \(5, 5\); set `size`")
    assert Federation.from_folder(album, size=(4, 4)).x.shape[1:] == (4, 4)


def test_a_client_whose_images_have_another_size(album):
    write_images(album / "carl", np.zeros((2, 6, 6), dtype=np.uint8), ["cat", "cat"])
    fails(album, r"client 'carl': \S*carl rows have shape \(6, 6\), but earlier rows have shape \(5, 5\)")


def test_deep_pixels_are_not_squeezed_into_eight_bits(album):
    write_images(album / "ben", np.zeros((1, 5, 5), dtype=np.uint16), ["cow"])
    fails(album, r"client 'ben': \S*cow/000.png: pixel format 'I;16' is not supported; save")


def test_an_image_outside_the_classes(album):
    (album / "ben" / "cat" / "000.png").rename(album / "ben" / "000.png")
    fails(album, r"client 'ben': \S*ben/000.png is not in a class folder")


def test_a_client_without_images(album):
    (album / "carl").mkdir()
    fails(album, "client 'carl' has no training example")


def test_splits_of_images(tmp_path):
    pytest.importorskip("PIL")
    write_images(tmp_path / "anna" / "train", np.zeros((2, 5, 5), dtype=np.uint8), ["cat", "dog"])
    write_images(tmp_path / "anna" / "test", np.zeros((1, 5, 5), dtype=np.uint8), ["cow"])
    fails(tmp_path, r"client 'anna': \S*test/cow/000.png has a label outside the client's label set")
    assert Federation.from_folder(tmp_path, classes={"anna": ["cat", "cow", "dog"]}).sizes("test").tolist() == [1]
    (tmp_path / "anna" / "eval").mkdir()
    fails(tmp_path, r"client 'anna': \S*eval is next to train; move it inside, or rename it")


def test_without_pillow_the_extra_is_named(album, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    fails(album, r"pip install 'coterie\[images\]'")


@pytest.mark.parametrize("size", [(0, 3), (3,), (-1, 2), (2.5, 3), "ab", 7, (True, "3"), (10**5000, 1)])
def test_a_size_is_two_numbers(album, size):
    fails(album, r"`size` must be \(height, width\), two whole numbers from 1 to 100,000", size=size)


def test_an_absurd_size_is_refused_before_an_image_is_made(album):
    fails(album, r"client 'anna': \S*png: .*is refused: an image of .* would take 240\.0 GB", size=(10**5, 10**5))


def test_only_png_and_jpeg_images_are_read(album):
    from PIL import Image

    Image.new("L", (5, 5)).save(album / "anna" / "cat" / "zzz.gif")
    (album / "anna" / "cat" / "zzz.gif").rename(album / "anna" / "cat" / "zzz.png")
    fails(album, r"client 'anna': \S*zzz.png is not a PNG or JPEG image")


def test_an_array_under_two_names_is_refused(folder):
    np.savez(folder / "ben.npz", x=X, y=Y, x_train=X)
    fails(folder, r"client 'ben': \S*ben.npz has both x_train and another x_train|has both x and another x_train")
