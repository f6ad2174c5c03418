"""Segments: safetensors files with the trees of many clients, written once and read row by row.

Clients whose trees have the same names, types and shapes form a group. The tensors of a group are stacked along a
leading axis, next to a column with the indices of the clients. The header therefore stays small for any number of
clients. A file is named by its sha256, so it never changes, and equal runs have equal files.
"""

import hashlib
import json
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.core.tree import Tree
from coterie.storage.files import PRIVATE, make_private, sync_folder, write_durably

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
CODES = {dtype: code for code, dtype in DTYPES.items()}
CLIENTS = ""
"""Name of the column with the indices of clients. No tensor has this name."""
CHUNK = 1 << 22
"""Number of bytes that are held in memory while rows are copied between files."""

Rows = NDArray[np.int64]


class Column(NamedTuple):
    """Name, type and shape of one tensor in each row."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Size of the tensor in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


Kind = tuple[Column, ...]


class Block(NamedTuple):
    """Rows of one kind that are to be written to a segment."""

    kind: Kind
    num_rows: int
    read: Callable[[Column], Iterable[memoryview]]
    """Function that returns the bytes of a column, row by row."""


def fresh_blocks(trees: dict[int, Tree]) -> list[Block]:
    """Group trees by kind. They must be contiguous and on the CPU."""
    groups: dict[Kind, list[int]] = {}
    for client, tree in sorted(trees.items()):
        columns = (Column(name, value.dtype, tuple(value.shape)) for name, value in tree.items())
        groups.setdefault((Column(CLIENTS, torch.int64, ()), *columns), []).append(client)

    def block(kind: Kind, clients: list[int]) -> Block:
        def read(column: Column) -> Iterator[memoryview]:
            if column.name == CLIENTS:
                yield _raw(torch.tensor(clients))
            else:
                yield from (_raw(trees[client][column.name]) for client in clients)

        return Block(kind, len(clients), read)

    return [block(kind, clients) for kind, clients in groups.items()]


def write_segment(folder: Path, blocks: Iterable[Block]) -> "Segment":
    """Write blocks to a new segment, which is on the disk when this returns. Blocks are streamed."""
    groups: dict[Kind, list[Block]] = {}
    for block in blocks:
        groups.setdefault(block.kind, []).append(block)
    columns = [
        (f"{i}/{column.name}", column, members) for i, (kind, members) in enumerate(groups.items()) for column in kind
    ]
    entries: dict[str, dict[str, Any]] = {}
    end = 0
    for key, column, members in columns:
        num_rows = sum(block.num_rows for block in members)
        begin, end = end, end + num_rows * column.num_bytes
        shape = [num_rows, *column.shape]
        entries[key] = {"dtype": CODES[column.dtype], "shape": shape, "data_offsets": [begin, end]}
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)

    def content() -> Iterator[bytes | memoryview]:
        yield len(header).to_bytes(8, "little") + header
        for _, column, members in columns:
            for block in members:
                yield from block.read(column)

    make_private(folder)
    partial = folder / ".partial"
    path = partial.replace(folder / f"{write_durably(partial, content(), PRIVATE)}.safetensors")
    sync_folder(folder)
    sync_folder(folder.parent)
    return Segment(path)


class _Group(NamedTuple):
    first_row: int
    num_rows: int
    columns: dict[Column, int]
    """Offset in the file at which each column begins."""

    @property
    def row_bytes(self) -> int:
        """Size of a row in bytes."""
        return sum(column.num_bytes for column in self.columns)


class Segment:
    """A segment. Rows are numbered across its groups and can be read even after the file was deleted."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.sha256 = path.stem
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
        columns: dict[str, dict[Column, int]] = {}
        num_rows: dict[str, int] = {}
        for key, entry in header.items():
            group, name = key.split("/", 1)
            num_rows[group], *shape = entry["shape"]
            column = Column(name, DTYPES[entry["dtype"]], tuple(shape))
            columns.setdefault(group, {})[column] = 8 + length + entry["data_offsets"][0]
        self._first_rows = list(accumulate(num_rows.values(), initial=0))[:-1]
        self._groups = [
            _Group(*facts) for facts in zip(self._first_rows, num_rows.values(), columns.values(), strict=True)
        ]
        self.num_bytes = sum(group.num_rows * group.row_bytes for group in self._groups)
        size = path.stat().st_size
        self._map = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)

    @classmethod
    def checked(cls, path: Path) -> "Segment":
        """Open a segment. Raises ValueError if the content of the file has changed."""
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != path.stem:
                raise ValueError(f"the sha256 of {path.name} differs from the recorded one")
        return cls(path)

    def __getitem__(self, row: int) -> Tree:
        """Read one row. Plain reads are used: pages of a memory map would count as memory of the process."""
        group = self._groups[bisect_right(self._first_rows, row) - 1]
        columns = [column for column in group.columns if column.name != CLIENTS]
        places = [group.columns[column] + (row - group.first_row) * column.num_bytes for column in columns]
        tree = {column.name: torch.empty(column.shape, dtype=column.dtype) for column in columns}
        try:
            with self.path.open("rb", buffering=0) as file:
                for place, value in zip(places, tree.values(), strict=True):
                    file.seek(place)
                    if file.readinto(_raw(value)) != value.nbytes:
                        raise OSError(f"{self.path} was truncated while the run was using it")
        except FileNotFoundError:
            for place, value in zip(places, tree.values(), strict=True):
                _raw(value)[:] = self._map[place : place + value.nbytes].numpy().data
        return tree

    def clients(self) -> Rows:
        """Return the index of the client of each row."""
        column = Column(CLIENTS, torch.int64, ())
        return np.concatenate(
            [np.fromfile(self.path, np.int64, group.num_rows, offset=group.columns[column]) for group in self._groups]
        )

    def live_bytes(self, rows: Rows) -> int:
        """Return the size of these rows in bytes."""
        return sum(len(inside) * group.row_bytes for group, inside in self._by_group(rows))

    def blocks(self, rows: Rows) -> list[Block]:
        """Return these rows as blocks, to copy them into another segment."""

        def block(group: _Group, inside: Rows) -> Block:
            return Block(tuple(group.columns), len(inside), lambda column: self._copy(group, column, inside))

        return [block(group, inside) for group, inside in self._by_group(rows) if len(inside)]

    def _by_group(self, rows: Rows) -> list[tuple[_Group, Rows]]:
        rows = np.sort(rows)
        parts = np.split(rows, np.searchsorted(rows, self._first_rows[1:]))
        return [(group, part - group.first_row) for group, part in zip(self._groups, parts, strict=True)]

    def _copy(self, group: _Group, column: Column, rows: Rows) -> Iterator[memoryview]:
        width = column.num_bytes
        step = max(1, CHUNK // max(1, width))
        with self.path.open("rb") as file:
            for start in range(0, group.num_rows, step):
                first, last = np.searchsorted(rows, [start, start + step])
                if first < last:
                    file.seek(group.columns[column] + start * width)
                    size = min(step, group.num_rows - start)
                    chunk = np.frombuffer(file.read(size * width), np.uint8).reshape(size, width)
                    yield chunk[rows[first:last] - start].data


def _raw(value: Tensor) -> memoryview:
    return value.reshape(-1).view(torch.uint8).numpy().data
