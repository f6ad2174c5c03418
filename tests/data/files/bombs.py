"""Small files that ask for much memory. `python bombs.py FOLDER` reads each of them, and prints what it takes."""

import gzip
import io
import json
import lzma
import os
import pickle
import resource
import struct
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from coterie.data.federation import Federation
from coterie.data.files import idx, pickles, unpack
from coterie.data.sets import femnist, libsvm, pubmed, shakespeare, sst2
from coterie.errors import UserError
from coterie.recipe import read

REFUSED, READ = 0, 2
"""Exit codes of the process that reads a file."""
ZEROS = b"\0" * (16 << 20)


def many(pack: Callable[[bytes], bytes], times: int = 100, content: bytes = ZEROS) -> bytes:
    """Return a compressed file that repeats the content: gzip and xz files may be joined."""
    return pack(content) * times


def png(side: int) -> bytes:
    """Return a black image with one bit per pixel."""
    rows = zlib.compress((b"\0" + b"\0" * (side // 8)) * side) if side < 5000 else b""
    pieces = [(b"IHDR", struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)), (b"IDAT", rows), (b"IEND", b"")]
    chunks = (
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in pieces
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def images(folder: Path, number: int, side: int) -> Any:
    (folder / "anna" / "cat").mkdir(parents=True)
    for i in range(number):
        (folder / "anna" / "cat" / f"{i}.png").write_bytes(png(side))
    return Federation.from_folder(folder)


def arrays(folder: Path, header: dict[str, Any], content: bytes) -> Any:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, **header})
    with zipfile.ZipFile(folder / "anna.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("x.npy", file.getvalue() + content)
    return Federation.from_folder(folder)


def table(folder: Path, text: str) -> Any:
    (folder / "all.csv").write_text(text)
    return Federation.from_table(folder / "all.csv")


def columns(folder: Path, options: Any = (), **values: Any) -> Any:
    import pyarrow
    from pyarrow import parquet

    made = {name: pyarrow.array(each) if isinstance(each, np.ndarray) else each for name, each in values.items()}
    parquet.write_table(pyarrow.table(made), folder / "all.parquet", compression="zstd")
    del made
    return Federation.from_table(folder / "all.parquet", **dict(options))


def words(folder: Path) -> Any:
    import pyarrow

    chosen = pyarrow.array(np.zeros(100_000, np.int32))
    return columns(folder, site=pyarrow.DictionaryArray.from_arrays(chosen, pyarrow.array(["a" * 1_000_000])))


def lines(folder: Path, **options: Any) -> Any:
    import h5py

    for part in ("train", "test"):
        with h5py.File(folder / f"shakespeare_{part}.h5", "w") as file:
            file.create_dataset("examples/A/snippets", **options)
    return shakespeare.Shakespeare(path=str(folder)).load()


def tar(folder: Path, **fields: Any) -> Any:
    with tarfile.open(folder / "a", "w") as archive:
        entry = tarfile.TarInfo(fields.pop("name", "a"))
        for field, value in fields.items():
            setattr(entry, field, value)
        archive.fileobj.write(entry.tobuf(tarfile.GNU_FORMAT))  # type: ignore[union-attr]
    (folder / "a").write_bytes(gzip.compress((folder / "a").read_bytes()[:512]) + many(gzip.compress))
    return dict(unpack.members(folder / "a", str))


def packed(folder: Path, content: bytes) -> Path:
    (folder / "a").write_bytes(content)
    return folder / "a"


def leaf(folder: Path, content: bytes) -> Any:
    for part in ("train", "test"):
        (folder / part).mkdir()
        (folder / part / "a.json").write_bytes(content)
    return femnist.FEMNIST(path=str(folder)).load()


def sentences(folder: Path, content: bytes) -> Any:
    for part in ("train", "dev"):
        (folder / f"{part}.tsv").write_bytes(content)
    return sst2.SST2(path=str(folder)).load()


def sparse(folder: Path, rows: int) -> Any:
    matrix = {"indptr": np.zeros(rows + 1, np.int32), "indices": np.zeros(0, np.int32), "data": np.zeros(0)}
    state = pickle.dumps(matrix, 2)
    path = packed(folder, gzip.compress(b"\x80\x02cscipy.sparse.csr\ncsr_matrix\n)\x81" + state[2:-1] + b"b."))
    return pubmed._features(path)


def recipe(folder: Path) -> Any:
    (folder / "a.toml").write_text("a = 1\n" * 500_000)
    return read(folder / "a.toml")


def repeated(rows: int, word: str | bytes) -> Any:
    """Return a column that repeats a text, which a Parquet file has once."""
    import pyarrow

    return pyarrow.DictionaryArray.from_arrays(pyarrow.array(np.zeros(rows, np.int32)), pyarrow.array([word]))


def repeating(folder: Path, rows: int, part: str, word: str, **options: Any) -> Any:
    names = {name: repeated(rows, word if name == part else "train") for name in ("site", "y", "split")}
    return columns(folder, options, **names, x=np.zeros(rows, np.int8))


def parquets(folder: Path) -> Any:
    """Read files of which each takes less than it may."""
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.table({"y": np.zeros(700_000, np.int8), "x": np.zeros(700_000, np.int8)})
    for i in range(8):
        parquet.write_table(table, folder / f"{i}.parquet")
    return Federation.from_folder(folder)


def binary(folder: Path) -> Any:
    words = repeated(2000, b"a" * 200_000)
    return columns(folder, site=np.zeros(2000), y=np.zeros(2000), x=words.cast(words.type.value_type))


def wide(folder: Path, rows: int, digits: int, features: int) -> Any:
    """Read a table that has one long number in each column of features."""
    head = ",".join(["site", "y", *(f"x{i}" for i in range(features))])
    long = f"{'0' * digits}1"
    cells = (",".join(long if column == row else "1" for column in range(features)) for row in range(rows))
    return table(folder, "\n".join([head, *(f"a,0,{each}" for each in cells)]))


def text(folder: Path, part: str) -> Any:
    """Read a table in which a client or a label is almost as long as they may be."""
    word = "a" * 999
    rows = [(word if part == "site" else "a", word if part == "y" else "b"), *[("a", "b")] * 150_000]
    return table(folder, "site,y,x\n" + "".join(f"{site},{y},1\n" for site, y in rows))


BOMBS: dict[str, Callable[[Path], Any]] = {
    "gzip": lambda folder: idx.read(packed(folder, many(gzip.compress)), 3),
    "xz": lambda folder: idx.read(packed(folder, many(lzma.compress)), 3),
    "a member of a tar file": lambda folder: tar(folder, size=1600 << 20),
    "a name in a tar file": lambda folder: tar(
        folder, name="././@LongLink", type=tarfile.GNUTYPE_LONGNAME, size=1500 << 20
    ),
    "pixels": lambda folder: images(folder, 1, 13000),
    "many images": lambda folder: images(folder, 60, 2000),
    "columns of LIBSVM": lambda folder: libsvm.examples([packed(folder, b"1 1:1\n2 300000000:1\n")]),
    "rows of LIBSVM": lambda folder: libsvm.examples([packed(folder, many(gzip.compress, 100, b"1\n" * 1_000_000))]),
    "the shape of an array": lambda folder: arrays(folder, {"shape": (10**11, 10)}, b""),
    "zeros of an array": lambda folder: arrays(folder, {"shape": (24 << 20, 1)}, b"\0" * (192 << 20)),
    "a long text in a table": lambda folder: table(
        folder, "site,y,x\na,0,1\n" + "a,b,1\n" * 50_000 + f"a,{'c' * 90_000},1\n"
    ),
    "rows of a Parquet file": lambda folder: columns(folder, site=np.zeros(40_000_000, np.int8)),
    "a long text in a Parquet file": words,
    "fill values of HDF5": lambda folder: lines(folder, shape=(10**10,), dtype="S1", chunks=(1000,)),
    "a wide text of HDF5": lambda folder: lines(folder, shape=(3,), dtype="S900000000"),
    "lists of JSON": lambda folder: leaf(folder, many(gzip.compress, 20, b"[]," * 1_000_000)),
    "sentences": lambda folder: sentences(
        folder, gzip.compress(b"sentence\tlabel\n") + many(gzip.compress, 8, b"a\t1\n" * 1_000_000)
    ),
    "a packed pickle": lambda folder: pickles.load(packed(folder, many(gzip.compress))),
    "rows of a pickle": lambda folder: sparse(folder, 400_000),
    "a recipe": recipe,
    "a long number in each column": lambda folder: wide(folder, 3000, 10_000, 60),
    "a longer number in each column": lambda folder: wide(folder, 300, 100_000, 50),
    "binary values of a Parquet file": binary,
    "a long split of a Parquet file": lambda folder: repeating(folder, 500_000, "split", "a" * 1000, split="split"),
    "rows and columns of a Parquet file": lambda folder: repeating(
        folder, 3_000_000, "", "", split="split", features=["x"]
    ),
    "a folder of Parquet files": parquets,
}
LARGE: dict[str, Callable[[Path], Any]] = {
    "a long client": lambda folder: text(folder, "site"),
    "a long label": lambda folder: text(folder, "y"),
    "a long client of a Parquet file": lambda folder: repeating(folder, 500_000, "site", "a" * 1000, features=["x"]),
    "a long label of a Parquet file": lambda folder: repeating(folder, 500_000, "y", "a" * 1000, features=["x"]),
    "a split of a Parquet file": lambda folder: repeating(folder, 500_000, "", "", split="split"),
    "columns of a Parquet file": lambda folder: columns(
        folder, site=np.zeros(2), y=np.zeros(2), **{f"x{i}": np.zeros(2) for i in range(20_000)}
    ),
}
"""Small files that are read, although a careless reader would need gigabytes."""


def main(folder: Path) -> None:
    """Read each file in a process of its own, and print whether it is refused and how many bytes it takes."""
    outcomes = {}
    for name, explode in (BOMBS | LARGE).items():
        (folder / name).mkdir()
        child = os.fork()
        if not child:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            if sys.platform == "linux":
                pages = int(Path("/proc/self/statm").read_text().split()[0])
                most = pages * resource.getpagesize() + (3 << 30)
                resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))
            result = 1
            try:
                explode(folder / name)
                result = READ
            except UserError:
                result = REFUSED
            except BaseException as error:
                print(name, repr(error), file=sys.stderr)
            used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            (folder / name / "used").write_text(str(used << 10))
            os._exit(result)
        _, status = os.waitpid(child, 0)
        used = (folder / name / "used").read_text() if (folder / name / "used").exists() else "0"
        outcomes[name] = {"status": os.waitstatus_to_exitcode(status), "used": int(used)}
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
