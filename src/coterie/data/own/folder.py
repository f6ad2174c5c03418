"""Clients from a folder that contains a file or a folder for each client.

anna.npz                 or anna/data.npz         arrays x and y, or x_train, y_train, ...
anna.csv                 or anna/data.csv         a table (or .parquet)
anna/cat/1.png                                    images sorted by class (or .jpg)
anna/train/cat/1.png     anna/test/cat/2.png      images sorted by split, then by class
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coterie.data.federation import Federation
from coterie.data.files import limits
from coterie.data.files.images import IMAGES, read_image
from coterie.data.own.arrays import read_npz
from coterie.data.own.columns import Owners, check_features, deal, features_of, joined, labels_of, matrix, splits_of
from coterie.data.own.parts import NOTHING, SPLITS, Part, Parts
from coterie.data.own.pool import pool
from coterie.data.own.table import TABLES, read
from coterie.errors import UserError
from coterie.settings import user_path

_FILES = (".npz", *TABLES)
LARGEST = 100_000
"""Largest side of an image, in pixels."""


def from_folder(
    folder: str | Path,
    *,
    label: str,
    split: str | None,
    features: Sequence[str] | None,
    size: tuple[int, int] | None,
    grey: bool,
    **choices: Any,
) -> Federation:
    """Build a federation; see `Federation.from_folder`."""
    _check_size(size)
    check_features(features)
    return _federation(str(folder), _sources(user_path(folder)), label, split, features, size, grey, **choices)


def from_one(
    client: str,
    path: Path,
    *,
    label: str = "y",
    split: str | None = None,
    features: Sequence[str] | None = None,
    size: tuple[int, int] | None = None,
    grey: bool = False,
    **choices: Any,
) -> Federation:
    """Build a federation of one client from its file or its folder, which are like an entry of `from_folder`."""
    _check_size(size)
    if not path.exists():
        raise UserError(f"{path} does not exist")
    if not path.is_dir() and path.suffix.lower() not in _FILES:
        raise UserError(f"{path} is neither a folder of images nor a file of the kind {', '.join(_FILES)}")
    source = _inside(client, path) if path.is_dir() else path
    return _federation(str(path), {client: source}, label, split, features, size, grey, **choices)


def _federation(
    folder: str,
    sources: dict[str, Path],
    label: str,
    split: str | None,
    features: Sequence[str] | None,
    size: tuple[int, int] | None,
    grey: bool,
    **choices: Any,
) -> Federation:
    kinds = {"images" if source.is_dir() else source.suffix.lower() for source in sources.values()}
    if len(kinds) > 1:
        raise UserError(
            f"{folder}: some clients have {' and others '.join(sorted(kinds))}; use the same format for all clients"
        )
    if kinds == {"images"}:
        budget = limits.of_images()
        return pool({client: _images(client, path, size, grey, budget) for client, path in sources.items()}, **choices)
    if kinds == {".npz"}:
        budget = limits.Budget()
        return pool({client: read_npz(client, path, budget) for client, path in sources.items()}, **choices)
    regression = bool(choices.get("regression"))
    return pool(_tables(sources, label, split, features, regression), **choices)


def _check_size(size: Any) -> None:
    if size is None:
        return
    is_pair = isinstance(size, tuple | list) and len(size) == 2
    if not is_pair or not all(isinstance(n, int | np.integer) and 1 <= n <= LARGEST for n in size):
        raise UserError(f"`size` must be (height, width), two whole numbers from 1 to {LARGEST:,}")


def _sources(folder: Path) -> dict[str, Path]:
    """Find the file or the image folder of each client."""
    if not folder.is_dir():
        raise UserError(f"folder {folder} does not exist")
    sources: dict[str, Path] = {}
    for entry in _visible(folder):
        if entry.is_dir() or entry.suffix.lower() in _FILES:
            client = entry.name if entry.is_dir() else entry.stem
            if client in sources:
                raise UserError(
                    f"client {client!r} appears twice, as {sources[client].name} and {entry.name}; remove one"
                )
            sources[client] = _inside(client, entry) if entry.is_dir() else entry
    if not sources:
        raise UserError(f"{folder} has no clients; it needs a folder or a file ({', '.join(_FILES)}) for each")
    return sources


def _inside(client: str, folder: Path) -> Path:
    files = [entry for entry in _visible(folder) if entry.suffix.lower() in _FILES and entry.is_file()]
    if len(files) > 1:
        raise UserError(f"client {client!r}: {folder} has {len(files)} data files; keep only one")
    return files[0] if files else folder


def _images(client: str, folder: Path, size: tuple[int, int] | None, grey: bool, budget: limits.Budget) -> Parts:
    train = folder / "train"
    if not any(entry.is_dir() for entry in _visible(train)):
        return {"train": _by_class(client, folder, size, grey, budget)}
    if other := [entry.name for entry in _visible(folder) if entry.is_dir() and entry.name not in SPLITS]:
        raise UserError(
            f"client {client!r}: {folder / other[0]} is next to train; move it inside, "
            "or rename it to test or validation"
        )
    return {
        split: _by_class(client, folder / split, size, grey, budget) for split in SPLITS if (folder / split).is_dir()
    }


def _by_class(client: str, folder: Path, size: tuple[int, int] | None, grey: bool, budget: limits.Budget) -> Part:
    if stray := [entry for entry in _visible(folder) if entry.suffix.lower() in IMAGES and entry.is_file()]:
        raise UserError(f"client {client!r}: {stray[0]} is not in a class folder; move it into the folder of its class")
    files = [
        file
        for kind in _visible(folder)
        for file in (_visible(kind) if kind.is_dir() else [])
        if file.suffix.lower() in IMAGES
    ]
    if not files:
        return Part(*NOTHING, str(folder), str(folder))
    images = [read_image(client, file, size, grey, budget) for file in files]
    for file, image in zip(files, images, strict=True):
        if image.shape != images[0].shape:
            raise UserError(
                f"client {client!r}: {file} has shape {image.shape}, but {files[0].name} has shape {images[0].shape}; "
                "set `size` to resize all images, or `grey` if only some have colours"
            )
    kinds = np.array([file.parent.name for file in files])
    return Part(np.stack(images), kinds, str(folder), str(folder), lambda row: str(files[row]))


def _tables(
    sources: dict[str, Path], label: str, split: str | None, features: Sequence[str] | None, regression: bool
) -> Mapping[str, Parts]:
    """Read all tables as one, so that labels are numbers for all clients or text for all clients."""
    budget = limits.Budget()
    tables = [read(path, budget) for path in sources.values()]
    others = {label, split} - {None}
    names = features_of(tables[0], features, others)
    known = {*names, *others}
    for table in tables:
        if extra := [name for name in table.columns if features is None and name not in known]:
            raise UserError(
                f"{table.name} has a column {extra[0]!r}, which {tables[0].name} does not have; "
                "remove it, or list the columns to use in `features`"
            )
    whole = joined(tables, [label, *names, *([split] if split else [])])
    sizes = [len(table.column(label)) for table in tables]
    who = Owners.of(list(sources), np.repeat(np.arange(len(sources)), sizes))
    splits = None if split is None else splits_of(whole, split)
    y = labels_of(whole, label, who, regression)
    return deal(who, matrix(whole, names, who), y, whole, splits)


def _visible(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(entry for entry in folder.iterdir() if not entry.name.startswith((".", "__")))
