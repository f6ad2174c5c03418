"""Malformed inputs for every reader of foreign data, made from a seed.

A reader must return or raise a UserError. Anything else, a crash above all, is an escape.
"""

import gzip
import io
import json
import lzma
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import h5py
import numpy as np
from PIL import Image

from attack.mutate import EXTREMES, ODD_TEXTS, column, damaged, value
from coterie import recipe, registry
from coterie.data.federation import Federation
from coterie.data.files import idx, pickles, unpack
from coterie.data.sets import cifar, libsvm, omniglot, pubmed, sst2
from coterie.data.sets.femnist import FEMNIST
from coterie.data.sets.shakespeare import Shakespeare

Attempt = Callable[[int, Path], None]
SOME = np.random.default_rng(0)


def recipes(seed: int, folder: Path) -> None:
    """Change a random key to a random value, in a file or by `--set`."""
    rng = Random(seed)
    text = _toml(rng)
    section = rng.choice([*recipe.NAMED, *recipe.PLAIN, "sweep", rng.choice(ODD_TEXTS)])
    keys = ["name", "path", "clients", "new_users", "new_clients", "tau", "beta", "rounds", "seed", "threads", "size"]
    key = rng.choice([*keys, "adapt_steps", "participation", "clients_range", "dtype", rng.choice(ODD_TEXTS)])
    if rng.random() < 0.5:
        recipe.read({"data": {"name": rng.choice(registry.names("data"))}}, [f"{section}.{key}={text}"])
        return
    raw = f"[{section}]\n{key} = {text}\n".encode(errors="surrogatepass")
    path = _written(folder / "a.toml", damaged(rng, raw) if rng.random() < 0.5 else raw)
    recipe.read(path)


def _toml(rng: Random) -> str:
    digits = rng.choice((3, 19, 40, 5000))
    plain = ["true", "[]", "{}", "nan", "-inf", "1979-05-27", "0x" + "f" * digits, "9" * digits, "1e" + "9" * 4]
    nested = rng.choice(("[", "{a=", "[[1]", "[1,")) * rng.choice((1, 20, 100_000))
    return rng.choice(
        [*plain, repr(rng.choice(EXTREMES)), json.dumps(rng.choice(ODD_TEXTS)), nested, rng.choice(ODD_TEXTS)]
    )


def libsvm_text(seed: int, folder: Path) -> None:
    """Read lines of random words, or damaged lines."""
    rng = Random(seed)
    words = [
        "1",
        "-1",
        "2:1",
        "3:0.5",
        ":",
        "1:",
        ":1",
        "0:1",
        "-3:1",
        "1:nan",
        "1:inf",
        "1:1e60",
        "#",
        "1_0:1",
        "0x1:1",
    ]
    words += (
        [f"{number}:1" for number in EXTREMES] + [str(number) for number in EXTREMES] + [*ODD_TEXTS, "9" * 5000 + ":1"]
    )
    lines = ["1 1:1", "2 2:0.5"]
    for _ in range(6):
        odd = rng.random() < 0.15
        label = rng.choice(words if odd else words[:2])
        lines.append(
            " ".join([label, *(rng.choices(words, k=3) if odd else rng.sample(words[2:4], k=rng.randrange(3)))])
        )
    raw = ("\n".join(lines) + rng.choice(("", "\n"))).encode(errors="surrogatepass")
    path = _written(folder / "a", damaged(rng, raw) if rng.random() < 0.3 else raw)
    libsvm.examples([path, path] if rng.random() < 0.2 else [path], rng.choice((None, None, 3, 10**12)))


@cache
def _batch(protocol: int) -> bytes:
    tree = {"data": np.arange(6144, dtype=np.uint8).reshape(2, 3072), "labels": [1, 2], "n": np.int64(3), b"k": "x"}
    return pickle.dumps(tree, protocol)


PIECES = (
    *(b"]", b"}", b")", b"(", b"N", b"\x88", b"K\x01", b"M\xff\xff", b"J\xff\xff\xff\xff", b"\x8a\x08" + b"\xff" * 8),
    *(
        b"U\x02u1",
        b"U\x02O8",
        b"X\x01\x00\x00\x00a",
        b"C\x02ab",
        b"a",
        b"e",
        b"s",
        b"u",
        b"t",
        b"l",
        b"d",
        b"\x85",
        b"\x86",
    ),
    *(
        b"\x87",
        b"R",
        b"\x81",
        b"b",
        b"q\x00",
        b"h\x00",
        b"r\xff\xff\xff\x7f",
        b"\x94",
        b"0",
        b"1",
        b"2",
        b"\x92",
        b"P1\n",
    ),
    *(b"cnumpy\ndtype\n", b"cnumpy\nndarray\n", b"cnumpy.core.multiarray\n_reconstruct\n", b"c_codecs\nencode\n"),
    *(b"cnumpy.core.multiarray\nscalar\n", b"ccollections\ndefaultdict\n", b"c__builtin__\nlist\n", b"cos\nsystem\n"),
    *(b"cscipy.sparse.csr\ncsr_matrix\n", b"U\x04data", b"U\x06labels", b"\x93", b"I1\n", b"L9L\n", b"S'a'\n", b"."),
    b"(K\x01K\x02\x85cnumpy\ndtype\nU\x02O8K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
    b"U\x10" + b"A" * 16 + b"tb",
    b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb",
    b"(K\x01K\x02\x85cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01<K\x07NNK\x01K\x02K?tb\x89U\x02\x00\xfftb",
)


def pickled(seed: int, folder: Path) -> None:
    """Read random instructions, or a damaged batch of CIFAR."""
    rng = Random(seed)
    if rng.random() < 0.4:
        raw = b"\x80\x02" + b"".join(rng.choices(PIECES, k=rng.randrange(30))) + b"."
    else:
        raw = _batch(rng.choice((2, 3, 4)))
        head = raw[:400] if rng.random() < 0.8 else raw
        raw = damaged(rng, head) + raw[len(head) :]
    path = _written(folder / "a", raw)
    match rng.randrange(4):
        case 0:
            pickles.load(path, pubmed._MORE)
        case 1:
            pubmed._edges(path, 10)
        case 2:
            pubmed._features(path)
        case _:
            cifar.read_python(path, "labels", 10)


def idx_files(seed: int, folder: Path) -> None:
    """Read damaged images and labels of the MNIST family."""
    rng = Random(seed)
    images = b"\0\0\x08\3" + np.array([3, 4, 4], ">u4").tobytes() + bytes(48)
    labels = b"\0\0\x08\1" + np.array([3], ">u4").tobytes() + bytes(3)
    pack = rng.choice((bytes, gzip.compress, lzma.compress))
    one = _written(folder / "images", damaged(rng, pack(damaged(rng, images) if rng.random() < 0.5 else images)))
    two = _written(folder / "labels", damaged(rng, labels) if rng.random() < 0.5 else labels)
    idx.read_labelled(one, two, (4, 4), 10)


def csv_tables(seed: int, folder: Path) -> None:
    """Read damaged CSV files."""
    rng = Random(seed)
    cells = ["1"] * 12 + ["2", "2.5", "a", rng.choice(ODD_TEXTS)]
    rows = ["site,y,age"] + [",".join(rng.choices(cells, k=3)) for _ in range(rng.randrange(8))]
    raw = "\n".join([*rows, "a,1,2", "b,2,3"]).encode(errors="surrogatepass")
    path = _written(folder / "a.csv", damaged(rng, raw) if rng.random() < 0.5 else raw)
    Federation.from_table(path, **_choices(rng))


def frames(seed: int, folder: Path) -> None:
    """Convert tables with columns of any type."""
    rng = Random(seed)
    table: Any = {"site": list("aaabbb"), "y": [0, 1] * 3, "age": np.arange(6.0), "dose": np.ones(6)}
    table |= {name: column(rng, 6) for name in rng.sample(sorted(table), k=rng.choice((1, 1, 2, 4)))}
    if rng.random() < 0.05:
        table = value(rng)
    Federation.from_table(table, **_choices(rng))


def arrays(seed: int, folder: Path) -> None:
    """Convert arrays of any type and shape."""
    rng = Random(seed)
    clients: Any = {}
    for name in rng.sample(["a", "b", 1, "1", "\ud800", "a\0"], k=rng.randrange(4)):
        x: Any = np.stack([np.arange(6.0), np.ones(6)], axis=1) if rng.random() < 0.6 else column(rng, 6)
        y = [0, 1] * 3 if rng.random() < 0.5 else column(rng, 6)
        clients[name] = (x, y) if rng.random() < 0.95 else value(rng)
    Federation.from_arrays(clients if rng.random() < 0.95 else value(rng), **_choices(rng))


def _choices(rng: Random) -> dict[str, Any]:
    chosen: dict[str, Any] = {}
    if rng.random() < 0.2:
        chosen["regression"] = True
    if rng.random() < 0.1:
        chosen["tokens"] = True
    if rng.random() < 0.1:
        chosen["new"] = [rng.choice(("a", "b", "x"))]
    return chosen


@cache
def _npz() -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, x=SOME.normal(size=(4, 2)), y=np.array([0, 1, 0, 1]))
    return file.getvalue()


def npz(seed: int, folder: Path) -> None:
    """Read damaged archives of arrays, and arrays with random headers."""
    rng = Random(seed)
    if rng.random() < 0.5:
        raw = damaged(rng, _npz())
    else:
        file, plain = io.BytesIO(), io.BytesIO()
        np.save(plain, np.arange(8.0).reshape(4, 2))
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("x.npy", damaged(rng, plain.getvalue()))
            archive.writestr(rng.choice(("y.npy", "x.npy", "x", "y")), plain.getvalue())
        raw = file.getvalue()
    _written(folder / "anna.npz", raw)
    Federation.from_folder(folder)


@cache
def _parquet() -> bytes:
    import pyarrow
    from pyarrow import parquet

    file = io.BytesIO()
    parquet.write_table(pyarrow.table({"site": ["a", "a", "b", "b"], "y": [0, 1, 0, 1], "age": [1.0, 2, 3, 4]}), file)
    return file.getvalue()


@cache
def _image(kind: str, mode: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(SOME.integers(0, 255, (9, 9, 3), dtype=np.uint8)).convert(mode).save(file, kind)
    return file.getvalue()


def images(seed: int, folder: Path) -> None:
    """Read damaged PNG and JPEG files."""
    rng = Random(seed)
    for client in ("a", "b"):
        (folder / client / "cat").mkdir(parents=True)
        raw = _image(rng.choice(("PNG", "JPEG")), rng.choice(("L", "RGB")))
        _written(folder / client / "cat" / "1.png", damaged(rng, raw) if rng.random() < 0.6 else raw)
    Federation.from_folder(folder, size=rng.choice((None, (3, 3), (3, 3), (10**9, 10**9))), grey=rng.random() < 0.5)


def archives(seed: int, folder: Path) -> None:
    """Unpack damaged tar and zip files, and damaged compressed files."""
    rng = Random(seed)
    file = io.BytesIO()
    if rng.random() < 0.5:
        with tarfile.open(fileobj=file, mode=rng.choice(("w", "w:gz", "w:xz", "w:bz2"))) as made:  # type: ignore[call-overload]
            for name in ("a/b.txt", "c" * rng.choice((1, 200))):
                entry = tarfile.TarInfo(name)
                entry.size = 5
                made.addfile(entry, io.BytesIO(b"hello"))
    else:
        with zipfile.ZipFile(
            file, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA))
        ) as zipped:
            zipped.writestr("a/b.txt", "hello" * 50)
    path = _written(folder / "a", damaged(rng, file.getvalue()))
    if rng.random() < 0.3:
        unpack.content(path)
    else:
        list(unpack.members(path, str))


@cache
def _lines() -> bytes:
    file = io.BytesIO()
    with h5py.File(file, "w") as made:
        made["examples/A/snippets"] = np.array([b"Ay", b"No"], dtype="S")
        made["examples/B/snippets"] = np.array([b"Roar", b"O"], dtype=object).astype(h5py.string_dtype("ascii"))
    return file.getvalue()


def shakespeare(seed: int, folder: Path) -> None:
    """Read HDF5 files with random members. (Damaged HDF5 structures can crash the HDF5 library itself.)"""
    rng = Random(seed)
    for part in ("train", "test"):
        with h5py.File(folder / f"shakespeare_{part}.h5", "w") as made:
            for role in rng.sample(["A", "B_C", "\u00e4"], k=rng.randrange(1, 4)):
                made[f"examples/{role}/{rng.choice(('snippets',) * 15 + ('lines',))}"] = rng.choice(
                    (
                        *[np.array([b"Ay", b"N\0o"]), np.array([b"\xff"])] * 9,
                        np.arange(3),
                        np.zeros((2, 2), "S1"),
                        7,
                        "text",
                    )
                )
            if rng.random() < 0.05:
                made["examples/X"] = h5py.ExternalLink("other.h5", "/examples/A")
            if rng.random() < 0.05:
                made["examples/Y"] = h5py.SoftLink("/nowhere")
            if rng.random() < 0.05:
                made.create_dataset(
                    "examples/Z/snippets", (rng.choice((0, 5, 10**12)),), "S1", chunks=(4,), maxshape=(None,)
                )
        if rng.random() < 0.05:
            path = folder / f"shakespeare_{part}.h5"
            _written(path, damaged(rng, gzip.compress(path.read_bytes())))
    Shakespeare(path=str(folder), sequence_length=rng.choice((1, 3, 80, 2**62)), joined=rng.random() < 0.5).load()


def femnist(seed: int, folder: Path) -> None:
    """Read damaged JSON files of LEAF, and JSON trees of another shape."""
    rng = Random(seed)
    for part in ("train", "test"):
        (folder / part).mkdir()
        data = {"x": [[0.5] * 784] * 2, "y": [0, rng.choice((1,) * 12 + (61, 62, -1, 0.5, "1", None, 10**30))]}
        tree: Any = {
            "users": rng.choice((["a"],) * 12 + (["a", "a"], "a", [1], [["a"]], {"a": 1})),
            "user_data": {"a": data},
        }
        raw = json.dumps(tree if rng.random() < 0.95 else [tree]).encode()
        if rng.random() < 0.4:
            head = raw[:120]
            raw = (damaged(rng, head) if rng.random() < 0.5 else head) + damaged(rng, raw[len(head) :])
        _written(folder / part / "a.json", raw if rng.random() < 0.98 else b"[" * 100_000)
    FEMNIST(path=str(folder)).load()


@cache
def _planetoid() -> dict[str, bytes]:
    def sparse(rows: int) -> bytes:
        matrix = {"_shape": (rows, 500), "indptr": np.arange(rows + 1, dtype=np.int32)}
        matrix |= {"indices": np.arange(rows, dtype=np.int32), "data": np.ones(rows)}
        return b"\x80\x02cscipy.sparse.csr\ncsr_matrix\n)\x81" + pickle.dumps(matrix, 2)[2:-1] + b"b."

    graph = pickle.dumps({i: [(i + 1) % 15] for i in range(15)}, 2)
    files = {"allx": sparse(12), "tx": sparse(3), "graph": graph, "test.index": b"12\n14\n13\n"}
    return files | {"ally": pickle.dumps(np.eye(3)[[0, 1, 2] * 4], 2), "ty": pickle.dumps(np.eye(3), 2)}


def pubmed_files(seed: int, folder: Path) -> None:
    """Load PubMed with one or more damaged files."""
    rng = Random(seed)
    for name, raw in _planetoid().items():
        _written(folder / f"ind.pubmed.{name}", damaged(rng, raw) if rng.random() < 0.3 else raw)
    pubmed.PubMed(path=str(folder)).load()


def sentences(seed: int, folder: Path) -> None:
    """Read damaged files of GLUE."""
    rng = Random(seed)
    for name in ("train", "dev"):
        words = [rng.choice(ODD_TEXTS) if rng.random() < 0.2 else "good" for _ in range(4)]
        raw = ("sentence\tlabel\n" + "".join(f"{word} a\t1\n" for word in words)).encode(errors="surrogatepass")
        _written(folder / f"{name}.tsv", damaged(rng, raw) if rng.random() < 0.5 else raw)
    sst2.SST2(path=str(folder), max_length=rng.choice((3, 64, 2**62))).load()


@cache
def _drawing() -> bytes:
    file = io.BytesIO()
    Image.fromarray(SOME.integers(0, 2, (105, 105), dtype=np.uint8) * 255).convert("1").save(file, "PNG")
    return file.getvalue()


def drawings(seed: int, folder: Path) -> None:
    """Read Omniglot with damaged drawings and archives."""
    rng = Random(seed)
    for part in ("background", "evaluation"):
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            for i in range(5):
                odd = rng.choice(("a.png", "../x/y/character01/1_1.png", "x/y/character01/1_1.png"))
                name = f"x/{part}/character01/000{i}_01.png" if rng.random() < 0.97 else odd
                archive.writestr(name, damaged(rng, _drawing()) if rng.random() < 0.1 else _drawing())
        raw = file.getvalue()
        _written(folder / f"images_{part}.zip", damaged(rng, raw) if rng.random() < 0.2 else raw)
    omniglot.Omniglot(path=str(folder)).load()


def parquet_tables(seed: int, folder: Path) -> None:
    """Read damaged Parquet files."""
    rng = Random(seed)
    Federation.from_table(_written(folder / "a.parquet", damaged(rng, _parquet())), **_choices(rng))


def attempts() -> dict[str, Attempt]:
    """Return a function (seed, folder) for each reader, which makes a malformed input and reads it."""
    return {
        "recipe": recipes,
        "libsvm": libsvm_text,
        "pickles": pickled,
        "idx": idx_files,
        "csv": csv_tables,
        "parquet": parquet_tables,
        "frames": frames,
        "arrays": arrays,
        "npz": npz,
        "images": images,
        "archives": archives,
        "shakespeare": shakespeare,
        "femnist": femnist,
        "pubmed": pubmed_files,
        "sst2": sentences,
        "omniglot": drawings,
    }


def _written(path: Path, raw: bytes) -> Path:
    path.write_bytes(raw)
    return path
