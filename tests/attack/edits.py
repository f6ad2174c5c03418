"""Campaign `edits`: files for every reader of foreign data, edited by Hypothesis, which also shrinks what escapes."""

import io
import json
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from attack import readers
from attack.campaign import Campaign, Escape
from coterie import recipe
from coterie.data.federation import Federation
from coterie.data.files import idx, unpack
from coterie.data.sets import cifar, femnist, libsvm, omniglot, pubmed, sst2
from coterie.errors import UserError

EXAMPLES = 200
"""Number of edited files in one attempt."""
OPTIONS = {
    "deadline": None,
    "database": None,
    "report_multiple_bugs": False,
    "suppress_health_check": list(HealthCheck),
}


class Source(NamedTuple):
    """Valid files, and a function that reads them from a folder."""

    files: dict[str, bytes]
    read: Callable[[Path], object]


@cache
def sources() -> dict[str, Source]:
    """Return valid files for each reader. (Damaged HDF5 files can crash the HDF5 library itself.)"""
    table = b"site,y,age\na,1,2\na,2,2.5\nb,1,3\nb,2,4\n"
    images = b"\0\0\x08\3" + np.array([3, 4, 4], ">u4").tobytes() + bytes(48)
    labels = b"\0\0\x08\1" + np.array([3], ">u4").tobytes() + bytes(3)
    leaf = {"users": ["a"], "user_data": {"a": {"x": [[0.5] * 784] * 2, "y": [0, 1]}}}
    drawings = {
        f"images_{part}.zip": _zip({f"x/{part}/character01/000{i}_01.png": readers._drawing() for i in range(5)})
        for part in ("background", "evaluation")
    }
    pictures = {f"{client}/cat/1.png": readers._image("PNG", "RGB") for client in "ab"}
    parts = {f"{part}/a.json": json.dumps(leaf).encode() for part in ("train", "test")}
    return {
        "recipe": Source(
            {"a": b'[data]\nname = "digits"\n[run]\nrounds = 3\nclients_range = [1, 2]\n[method]\nname = "fedavg"\n'},
            lambda folder: recipe.read(folder / "a"),
        ),
        "libsvm": Source({"a": b"1 1:1\n2 2:0.5 3:1e-3 # x\n"}, lambda folder: libsvm.examples([folder / "a"], None)),
        "cifar": Source({"a": readers._batch(2)}, lambda folder: cifar.read_python(folder / "a", "labels", 10)),
        "idx": Source(
            {"a": images, "b": labels}, lambda folder: idx.read_labelled(folder / "a", folder / "b", (4, 4), 10)
        ),
        "csv": Source({"a.csv": table}, lambda folder: Federation.from_table(folder / "a.csv")),
        "parquet": Source(
            {"a.parquet": readers._parquet()}, lambda folder: Federation.from_table(folder / "a.parquet")
        ),
        "npz": Source({"anna.npz": readers._npz()}, Federation.from_folder),
        "images": Source(pictures, Federation.from_folder),
        "archives": Source({"a": _zip({"a/b.txt": b"hello" * 9})}, lambda folder: [*unpack.members(folder / "a", str)]),
        "femnist": Source(parts, lambda folder: femnist.FEMNIST(path=str(folder)).load()),
        "pubmed": Source(
            {f"ind.pubmed.{name}": raw for name, raw in readers._planetoid().items()},
            lambda folder: pubmed.PubMed(path=str(folder)).load(),
        ),
        "sst2": Source(
            dict.fromkeys(("train.tsv", "dev.tsv"), b"sentence\tlabel\na good film\t1\na bad one\t0\n"),
            lambda folder: sst2.SST2(path=str(folder)).load(),
        ),
        "omniglot": Source(drawings, lambda folder: omniglot.Omniglot(path=str(folder)).load()),
    }


def _zip(files: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, raw in files.items():
            archive.writestr(name, raw)
    return made.getvalue()


@st.composite
def edited(draw: st.DrawFn, raw: bytes) -> bytes:
    """Draw a file with a few changes: bytes are inserted, deleted, overwritten or repeated, or the end is cut off."""
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(raw)))
        stop = min(len(raw), start + draw(st.integers(0, 16)))
        match draw(st.sampled_from(("replace", "repeat", "cut"))):
            case "replace":
                raw = raw[:start] + draw(st.binary(max_size=16)) + raw[stop:]
            case "repeat":
                raw = raw[:start] + raw[start:stop] * draw(st.integers(2, 50)) + raw[stop:]
            case _:
                raw = raw[:start]
    return raw


def read(source: Source, changed: dict[str, bytes]) -> str:
    """Read the files of a source, some of which were changed."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, raw in {**source.files, **changed}.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(raw)
        try:
            source.read(Path(folder))
        except UserError:
            return "refused"
        return "read"


def search(name: str, examples: int, number: int | None = None) -> None:
    """Look for a file that a reader neither reads nor refuses, always in the same way or from a seed."""
    source = sources()[name]

    @settings(max_examples=examples, derandomize=number is None, **OPTIONS)
    @given(st.data())
    def reads_or_refuses(data: st.DataObject) -> None:
        file = data.draw(st.sampled_from(sorted(source.files)))
        read(source, {file: data.draw(edited(source.files[file]) | st.binary(max_size=64))})

    (reads_or_refuses if number is None else seed(number)(reads_or_refuses))()


def attempt(number: int, folder: Path) -> str:
    """Search with one of the readers."""
    name = [*sources()][number % len(sources())]
    try:
        search(name, EXAMPLES, number)
    except Exception as error:
        notes = " ".join(getattr(error, "__notes__", ()))
        raise Escape(f"{name}: {type(error).__name__}: {str(error)[:200]}; {notes[:400]}") from error
    return f"{name}: {EXAMPLES} files were read or refused"


CAMPAIGN = Campaign(
    "edits",
    f"files for every reader, edited by Hypothesis ({EXAMPLES} in each attempt): a reader reads or refuses them",
    attempt,
    readers.prepare,
    500,
)
