"""Every format gives the same federation for the same data."""

import numpy as np
import pytest
import torch

import reference as ref
from coterie.data.federation import Federation
from coterie.data.own.export import write_client
from coterie.errors import UserError
from data.own.make import NAMES, clients, rows, write_csv, write_images

LABELS = {"integers": int, "strings": lambda label: f"kind {label}"}


def as_table_csv(folder, who, **choices):
    return Federation.from_table(write_csv(folder / "all.csv", rows(who)), **choices)


def as_parquet(folder, who, **choices):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(rows(who)), folder / "all.parquet")
    return Federation.from_table(str(folder / "all.parquet"), **choices)


def as_columns(folder, who, **choices):
    table = rows(who)
    return Federation.from_table({name: [row[name] for row in table] for name in table[0]}, **choices)


def as_npz_files(folder, who, **choices):
    for name, (x, y) in who.items():
        np.savez_compressed(folder / f"{name}.npz", x=x, y=y)
    return Federation.from_folder(folder, **choices)


def as_npz_in_folders(folder, who, **choices):
    for name, (x, y) in who.items():
        (folder / name).mkdir()
        np.savez(folder / name / "data.npz", x_train=x, y_train=y)
    return Federation.from_folder(str(folder), **choices)


def as_csv_files(folder, who, **choices):
    for name, mine in who.items():
        write_csv(folder / f"{name}.csv", [{"y": row["y"], **row} for row in rows({name: mine})])
    return Federation.from_folder(folder, features=NAMES, **choices)


def as_parquet_in_folders(folder, who, **choices):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for name, mine in who.items():
        (folder / name).mkdir()
        table = pyarrow.Table.from_pylist(rows({name: mine})).drop_columns(["site"])
        parquet.write_table(table, folder / name / "mine.parquet")
    return Federation.from_folder(folder, **choices)


class FakeDataset:
    """The part of datasets.Dataset that Coterie uses."""

    def __init__(self, table):
        self.table, self.column_names = table, list(table[0])

    def __getitem__(self, name):
        return [row[name] for row in self.table]


def as_dataset(folder, who, **choices):
    return Federation.from_datasets(FakeDataset(rows(who)), client="site", label="y", features=NAMES, **choices)


def as_dataset_of_arrays(folder, who, **choices):
    table = [{"site": row["site"], "y": row["y"], "x": [row[name] for name in NAMES]} for row in rows(who)]
    return Federation.from_datasets(FakeDataset(table), client="site", label="y", features="x", **choices)


FORMATS = [
    as_table_csv,
    as_parquet,
    as_columns,
    as_npz_files,
    as_npz_in_folders,
    as_csv_files,
    as_parquet_in_folders,
    as_dataset,
    as_dataset_of_arrays,
]


@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
@pytest.mark.parametrize("choices", [{}, {"test": 0.5, "validation": 0.2, "seed": 3, "new": ["ben"]}])
@pytest.mark.parametrize("read", FORMATS)
def test_a_format_is_as_good_as_arrays(tmp_path, read, choices, labels):
    who = clients(labels)
    expected = Federation.from_arrays(who, **choices)
    federation = read(tmp_path, who, **choices)
    assert federation.ids == ("anna", "ben", "carl")
    assert federation.labels == expected.labels
    assert federation.fingerprint() == expected.fingerprint()


@pytest.mark.parametrize("read", FORMATS)
def test_classes_may_be_declared(tmp_path, read):
    assert read(tmp_path, clients(), classes={"anna": [1, 5, 9]}).labels == (1, 2, 3, 5, 9)


def given_splits():
    return {
        name: {"train": (x[:5], y[:5]), "test": (x[5:7], y[5:7]), "validation": (x[7:8], y[7:8])}
        for name, (x, y) in clients().items()
    }


def test_given_splits_are_the_same_in_every_format(tmp_path):
    who = given_splits()
    order = ("train", "test", "validation")
    expected = Federation.from_arrays({name: [a for s in order for a in parts[s]] for name, parts in who.items()})
    assert list(expected.splits) == ["train", "test", "validation"]
    assert expected.sizes("validation").tolist() == [1, 1, 1]

    table = [row for s in order for row in rows({n: parts[s] for n, parts in who.items()}, part=s)]
    federation = Federation.from_table(write_csv(tmp_path / "all.csv", table), split="part")
    assert federation.fingerprint() == expected.fingerprint()

    for name, parts in who.items():
        named = {f"{axis}_{s}": array for s in order for axis, array in zip("xy", parts[s], strict=True)}
        (tmp_path / "npz").mkdir(exist_ok=True)
        np.savez(tmp_path / "npz" / name, x_val=named.pop("x_validation"), y_val=named.pop("y_validation"), **named)
        mine = [row for s in order for row in rows({name: parts[s]}, part=s.upper())]
        (tmp_path / "csv").mkdir(exist_ok=True)
        write_csv(tmp_path / "csv" / f"{name}.csv", mine)
    assert Federation.from_folder(tmp_path / "npz").fingerprint() == expected.fingerprint()
    federation = Federation.from_folder(tmp_path / "csv", split="part", features=NAMES)
    assert federation.fingerprint() == expected.fingerprint()

    dataset = {s: FakeDataset(rows({n: parts[s] for n, parts in who.items()})) for s in reversed(order)}
    federation = Federation.from_datasets(dataset, client="site", label="y", features=NAMES)
    assert federation.fingerprint() == expected.fingerprint()


@pytest.mark.parametrize("shape", [(6, 4), (6, 4, 3)])
@pytest.mark.parametrize("layout", ["classes", "splits", "dataset"])
def test_images_are_arrays_in_0_to_1(tmp_path, shape, layout):
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    pixels = {name: rng.integers(0, 256, (8, *shape), dtype=np.uint8) for name in ("anna", "ben")}
    kinds = ["cat"] * 4 + ["dog"] * 4
    arrays = {}
    for name, mine in pixels.items():
        x = (mine / np.float32(255)) if len(shape) == 2 else (mine / np.float32(255)).transpose(0, 3, 1, 2)
        half = slice(None, None, 2), slice(1, None, 2)
        arrays[name] = (x, kinds) if layout != "splits" else (x[half[0]], kinds[half[0]], x[half[1]], kinds[half[1]])
        if layout == "splits":
            write_images(tmp_path / name / "train", mine[half[0]], kinds[half[0]])
            write_images(tmp_path / name / "test", mine[half[1]], kinds[half[1]])
        else:
            write_images(tmp_path / name, mine, kinds)
    expected = Federation.from_arrays(arrays)
    if layout == "dataset":
        table = [
            {"who": name, "kind": kind, "image": image.fromarray(each)}
            for name, mine in pixels.items()
            for each, kind in zip(mine, kinds, strict=True)
        ]
        federation = Federation.from_datasets(FakeDataset(table), client="who", label="kind", features="image")
    else:
        federation = Federation.from_folder(tmp_path)
    assert federation.labels == ("cat", "dog")
    assert federation.fingerprint() == expected.fingerprint()
    assert federation.x.shape[1:] == ((6, 4) if len(shape) == 2 else (3, 6, 4))


def test_images_are_resized_and_made_grey_on_request(tmp_path):
    pytest.importorskip("PIL")
    write_images(tmp_path / "anna", np.full((3, 6, 4, 3), 255, dtype=np.uint8), ["cat", "cat", "dog"], ".jpg")
    write_images(tmp_path / "ben", np.full((3, 5, 5), 255, dtype=np.uint8), ["cat", "cat", "dog"], ".JPEG")
    federation = Federation.from_folder(tmp_path, size=(8, 9), grey=True)
    assert federation.x.shape[1:] == (8, 9)
    assert (federation.x == 1).all()


def test_pandas_and_polars_frames_are_tables():
    pandas = pytest.importorskip("pandas")
    expected = Federation.from_arrays(clients())
    assert Federation.from_table(pandas.DataFrame(rows(clients()))).fingerprint() == expected.fingerprint()
    polars = pytest.importorskip("polars")
    assert Federation.from_table(polars.DataFrame(rows(clients()))).fingerprint() == expected.fingerprint()


def test_a_hugging_face_dataset_is_one():
    datasets = pytest.importorskip("datasets")
    federation = Federation.from_datasets(
        datasets.Dataset.from_list(rows(clients())), client="site", label="y", features=NAMES
    )
    assert federation.fingerprint() == Federation.from_arrays(clients()).fingerprint()


def test_a_dataset_whose_splits_have_other_names():
    with pytest.raises(UserError, match=r"splits \['dev'\]; rename them to train, test and validation"):
        Federation.from_datasets({"dev": FakeDataset(rows(clients()))}, client="site", label="y", features=NAMES)


def test_a_dataset_names_the_row_that_is_no_array():
    table = [{"who": "a", "y": 0, "x": [1.0, 2.0]}, {"who": "b", "y": 0, "x": ["p", "q"]}]
    with pytest.raises(UserError, match="client 'b': train row 1: column 'x' is not an array of numbers"):
        Federation.from_datasets(FakeDataset(table), client="who", label="y", features="x")
    table[1]["x"] = [1.0]
    with pytest.raises(UserError, match=r"client 'b': train row 1: column 'x' has shape \(1,\), but .* shape \(2,\)"):
        Federation.from_datasets(FakeDataset(table), client="who", label="y", features="x")


def test_a_damaged_parquet_file_is_read_or_refused(tmp_path):
    """Every byte is changed once. Text is stored as places in a list of words, and a changed place is outside of it."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "all.parquet"
    table = pyarrow.table({"client": ["a", "b", "a", "b"] * 2, "x": [0.5] * 8, "y": [0, 1, 1, 0] * 2})
    parquet.write_table(table, file, compression="none", write_page_checksum=False)
    whole, refused = file.read_bytes(), 0
    for place in range(len(whole)):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 7]) + whole[place + 1 :])
        try:
            Federation.from_table(str(file), client="client", label="y")
        except UserError:
            refused += 1
    assert 50 < refused < len(whole)


def test_clients_written_to_files_are_read_again(tmp_path):
    made = ref.federation((5, 3, 8))
    for client, name in enumerate(made.ids):
        write_client(made, client, tmp_path / f"{name}.npz")
    found = Federation.from_folder(tmp_path)
    assert found.ids == made.ids
    assert found.labels == made.labels
    for split in ("train", "test"):
        for client in range(3):
            mine, theirs = (each.data(client, split, "global") for each in (found, made))
            assert torch.equal(mine.x, theirs.x)
            assert torch.equal(mine.y, theirs.y)
