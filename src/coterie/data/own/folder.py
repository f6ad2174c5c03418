"""Clients from a folder that has a file or a folder for each of them.

anna.npz                 or anna/data.npz         arrays x and y, or x_train, y_train, ...
anna.csv                 or anna/data.csv         a table; .parquet likewise
anna/cat/1.png                                    images by class; .jpg likewise
anna/train/cat/1.png     anna/test/cat/2.png      the same, already split
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coterie.data.federation import Federation
from coterie.data.files.images import IMAGES, read_image
from coterie.data.own.arrays import read_npz
from coterie.data.own.columns import deal, features_of, joined, labels_of, matrix, splits_of
from coterie.data.own.parts import NOTHING, SPLITS, Part, Parts
from coterie.data.own.pool import pool
from coterie.data.own.table import TABLES, read
from coterie.errors import UserError

_FILES = (".npz", *TABLES)


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
    sources = _sources(Path(folder).expanduser())
    kinds = {"images" if source.is_dir() else source.suffix.lower() for source in sources.values()}
    if len(kinds) > 1:
        raise UserError(f"{folder}: some clients have {' and others '.join(sorted(kinds))}; make them all of one kind")
    if kinds == {"images"}:
        return pool({client: _images(client, path, size, grey) for client, path in sources.items()}, **choices)
    if kinds == {".npz"}:
        return pool({client: read_npz(client, path) for client, path in sources.items()}, **choices)
    return pool(_tables(sources, label, split, features), **choices)


def _sources(folder: Path) -> dict[str, Path]:
    """For each client its file, or its folder of images."""
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}")
    sources: dict[str, Path] = {}
    for entry in _visible(folder):
        if entry.is_dir() or entry.suffix.lower() in _FILES:
            client = entry.name if entry.is_dir() else entry.stem
            if client in sources:
                raise UserError(f"client {client!r} comes twice: as {sources[client].name} and as {entry.name}")
            sources[client] = _inside(client, entry) if entry.is_dir() else entry
    if not sources:
        raise UserError(f"{folder} has no clients: neither folders nor files that end in {', '.join(_FILES)}")
    return sources


def _inside(client: str, folder: Path) -> Path:
    files = [entry for entry in _visible(folder) if entry.suffix.lower() in _FILES and entry.is_file()]
    if len(files) > 1:
        raise UserError(f"client {client!r}: {folder} has {len(files)} files of data; leave one")
    return files[0] if files else folder


def _images(client: str, folder: Path, size: tuple[int, int] | None, grey: bool) -> Parts:
    train = folder / "train"
    if not any(entry.is_dir() for entry in _visible(train)):
        return {"train": _by_class(client, folder, size, grey)}
    if other := [entry.name for entry in _visible(folder) if entry.is_dir() and entry.name not in SPLITS]:
        raise UserError(f"client {client!r}: {folder / other[0]} is beside train; put it inside")
    return {split: _by_class(client, folder / split, size, grey) for split in SPLITS if (folder / split).is_dir()}


def _by_class(client: str, folder: Path, size: tuple[int, int] | None, grey: bool) -> Part:
    if stray := [entry for entry in _visible(folder) if entry.suffix.lower() in IMAGES and entry.is_file()]:
        raise UserError(f"client {client!r}: {stray[0]} is in no folder of a class")
    files = [
        file
        for kind in _visible(folder)
        for file in (_visible(kind) if kind.is_dir() else [])
        if file.suffix.lower() in IMAGES
    ]
    if not files:
        return Part(*NOTHING, str(folder), str(folder))
    images = [read_image(client, file, size, grey) for file in files]
    for file, image in zip(files, images, strict=True):
        if image.shape != images[0].shape:
            raise UserError(
                f"client {client!r}: {file} has shape {image.shape}, {files[0].name} {images[0].shape}; "
                "choose a `size` for all, or `grey` if some have colours"
            )
    kinds = np.array([file.parent.name for file in files])
    return Part(np.stack(images), kinds, str(folder), str(folder), lambda row: str(files[row]))


def _tables(
    sources: dict[str, Path], label: str, split: str | None, features: Sequence[str] | None
) -> dict[str, Parts]:
    """All of them read as one, so that a label is a number for everybody or for nobody."""
    tables = [read(path) for path in sources.values()]
    others = {label, split} - {None}
    names = features_of(tables[0], features, others)
    for table in tables:
        if extra := [name for name in table.columns if features is None and name not in {*names, *others}]:
            raise UserError(
                f"{table.name} has a column {extra[0]!r}, {tables[0].name} has not; mend it, or name `features`"
            )
    whole = joined(tables, [label, *names, *([split] if split else [])])
    who = np.repeat(list(sources), [len(table.column(label)) for table in tables])
    splits = None if split is None else splits_of(whole, split)
    return deal(who, matrix(whole, names, who), labels_of(whole, label, who), whole, splits)


def _visible(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(entry for entry in folder.iterdir() if not entry.name.startswith((".", "__")))
