"""Many clients, each with its own examples and its own label set, over one pool of arrays."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from coterie.errors import UserError
from coterie.method import Data, Labels

Index = NDArray[np.int64]


class Ragged(NamedTuple):
    """Rows of integers of different length, in one array."""

    values: Index
    offsets: Index

    @classmethod
    def of(cls, rows: Sequence[Index]) -> "Ragged":
        values = np.concatenate([np.asarray(row, dtype=np.int64) for row in rows])
        return cls(values, np.cumsum([0, *map(len, rows)], dtype=np.int64))

    def row(self, i: int) -> Index:
        return self.values[self.offsets[i] : self.offsets[i + 1]]

    def lengths(self) -> Index:
        return np.diff(self.offsets)

    def padded(self, rows: Index) -> tuple[Index, NDArray[np.bool_]]:
        """Those rows as one matrix, and where it holds values; padding is the first value of all."""
        start, lengths = self.offsets[rows], self.offsets[rows + 1] - self.offsets[rows]
        place = np.arange(lengths.max())
        mask = place < lengths[:, None]
        return self.values[np.where(mask, start[:, None] + place, 0)], mask


class Groups(NamedTuple):
    """Who made each example, where that is known: a writer, a role, an alphabet, a site."""

    train: Index
    test: Index
    names: tuple[str, ...]


class Examples(NamedTuple):
    """A data set as it is published: no clients yet. Labels are 0..C-1, named by `labels`."""

    x_train: NDArray[Any]
    y_train: Index
    x_test: NDArray[Any]
    y_test: Index
    labels: tuple[Any, ...]
    groups: Groups | None = None


class Assignment(NamedTuple):
    """What a partition decides: rows of the train and of the test set for each client, its classes, who is new."""

    train: Sequence[Index]
    test: Sequence[Index]
    classes: Sequence[Index]
    is_new: NDArray[np.bool_]
    names: Sequence[str] = ()
    """Of the clients; "0", "1", ... unless given."""
    validation: Sequence[Index] = ()
    """Rows of the train set that are kept for choosing between models; no client's are also in its `train`."""


@dataclass(frozen=True)
class Federation:
    """Clients are numbered by their place in `ids`; labels are numbered by their place in `labels`."""

    ids: tuple[str, ...]
    labels: tuple[Any, ...]
    x: Tensor
    y: Tensor
    splits: dict[str, Ragged]
    """For "train", "test" and perhaps "validation": which rows of x and y are each client's."""
    classes: Ragged
    """Each client's own label set, sorted."""
    is_new: NDArray[np.bool_]
    """Held out of training, to be met as new users."""

    def __post_init__(self) -> None:
        empty = np.flatnonzero(self.splits["train"].lengths() == 0)
        if len(empty):
            raise UserError(f"client {self.ids[empty[0]]!r} has no training example; give it some or leave it out")

    @classmethod
    def from_arrays(
        cls,
        clients: Mapping[str, tuple[ArrayLike, ArrayLike, ArrayLike, ArrayLike]],
        *,
        new: Sequence[str] = (),
        classes: Mapping[str, Sequence[Any]] | None = None,
    ) -> "Federation":
        """From {client: (x_train, y_train, x_test, y_test)}; `new` names those held out as new users.

        A client's label set is what it trains on, unless `classes` declares a larger one.
        """
        if not clients:
            raise UserError("a federation needs at least one client")
        for what, named in (("new", new), ("classes", classes or ())):
            if unknown := set(named) - set(clients):
                raise UserError(f"{what} names {sorted(unknown)}, who are not among the clients")
        own: dict[str, NDArray[Any]] = {}
        rows: dict[str, list[Index]] = {"train": [], "test": []}
        xs: list[NDArray[Any]] = []
        ys: list[NDArray[Any]] = []
        start = 0
        for client, arrays in clients.items():
            if not isinstance(arrays, Sequence) or len(arrays) != 4:
                raise UserError(f"client {client!r}: expected four arrays (x_train, y_train, x_test, y_test)")
            own[client] = np.unique(_labels(client, "train", (classes or {}).get(client, arrays[1])))
            for split, x, y in (("train", *arrays[:2]), ("test", *arrays[2:])):
                x, y = _inputs(client, split, x), _labels(client, split, y)
                _check_client(client, split, x, y, own[client], xs)
                rows[split].append(np.arange(start, start + len(y)))
                start += len(y)
                xs.append(x)
                ys.append(y)
        if len({mine.dtype.kind for mine in own.values()}) > 1:
            raise UserError("some clients have integers as labels and others strings; make them all of one kind")
        labels = np.unique(np.concatenate(list(own.values())))
        return cls(
            ids=tuple(map(str, clients)),
            labels=tuple(labels.tolist()),
            x=torch.from_numpy(np.concatenate([x for x in xs if len(x)])),
            y=torch.from_numpy(np.searchsorted(labels, np.concatenate([y for y in ys if len(y)]))),
            splits={split: Ragged.of(each) for split, each in rows.items()},
            classes=Ragged.of([np.searchsorted(labels, mine) for mine in own.values()]),
            is_new=np.array([client in new for client in clients]),
        )

    @classmethod
    def assemble(cls, examples: Examples, assignment: Assignment) -> "Federation":
        """From a data set and a partition of it."""
        shift = len(examples.y_train)
        splits = {"train": Ragged.of(assignment.train), "test": Ragged.of([rows + shift for rows in assignment.test])}
        if len(assignment.validation):
            splits["validation"] = Ragged.of(assignment.validation)
        return cls(
            ids=tuple(assignment.names or map(str, range(len(assignment.train)))),
            labels=examples.labels,
            x=torch.from_numpy(np.concatenate([examples.x_train, examples.x_test])),
            y=torch.from_numpy(np.concatenate([examples.y_train, examples.y_test])),
            splits=splits,
            classes=Ragged.of(assignment.classes),
            is_new=assignment.is_new,
        )

    def to(self, dtype: torch.dtype, device: torch.device) -> "Federation":
        x = self.x.to(device, dtype if self.x.is_floating_point() else None)
        if not torch.isfinite(torch.stack(torch.aminmax(x))).all():
            raise UserError(f"some inputs are too large for {dtype}; scale them, or use float64")
        return replace(self, x=x, y=self.y.to(device))

    def __str__(self) -> str:
        examples = ", ".join(f"{rows.lengths().sum():,} {split}" for split, rows in self.splits.items())
        return (
            f"{len(self.existing):,} clients and {len(self.new):,} new users, {examples} examples, "
            f"{len(self.labels)} classes"
        )

    @cached_property
    def existing(self) -> Index:
        return np.flatnonzero(~self.is_new)

    @cached_property
    def new(self) -> Index:
        return np.flatnonzero(self.is_new)

    @cached_property
    def num_examples(self) -> int:
        """N: the training examples of all existing clients."""
        return int(self.sizes()[self.existing].sum())

    def sizes(self, split: str = "train") -> Index:
        return self._sizes[split]

    @cached_property
    def _sizes(self) -> dict[str, Index]:
        return {split: rows.lengths() for split, rows in self.splits.items()}

    def num_outputs(self, i: int, labels: Labels) -> int:
        """K_i: the head that the client needs."""
        return len(self.labels) if labels == "global" else len(self.classes.row(i))

    def data(self, i: int, split: str, labels: Labels, stream: int = 0) -> Data:
        """The client's examples, labelled over the union of classes or over its own."""
        return Data(*(part[0] for part in self.gather([i], split, labels, [stream])))

    def gather(
        self, clients: Sequence[int], split: str, labels: Labels, streams: Sequence[int], num_outputs: int = 0
    ) -> Data:
        """The same for several clients at once: stacked, and padded to the largest of them.

        `num_outputs` is the width of their heads, where that is more than the labels need.
        """
        picked, device = np.asarray(clients, dtype=np.int64), self.y.device
        rows, mask = map(torch.from_numpy, self.splits[split].padded(picked))
        y = self.y[rows.to(device)]
        own, owned = map(torch.from_numpy, self.classes.padded(picked))  # (C, K)
        if labels == "local":
            ordered = torch.where(owned, own, len(self.labels)).to(device)
            y = torch.searchsorted(ordered, y).clamp_(max=ordered.shape[1] - 1)
            own = torch.arange(own.shape[1]).expand_as(own)
        width = max(num_outputs, len(self.labels) if labels == "global" else own.shape[1])
        classes = torch.zeros(len(picked), width + 1, dtype=torch.bool)
        classes.scatter_(1, torch.where(owned, own, width), value=True)
        return Data(
            self.x.index_select(0, rows.flatten().to(device)).reshape(*rows.shape, *self.x.shape[1:]),
            y,
            mask.to(device),
            classes[:, :-1].to(device),
            torch.tensor(streams, device=device),
        )

    def fingerprint(self) -> str:
        """Tells whether a run is resumed on the federation that it was started on."""
        digest = hashlib.sha256(repr((self.ids, self.labels, self.x.shape)).encode())
        rows = [part for ragged in (self.classes, *self.splits.values()) for part in ragged]
        for array in (self.x.cpu().numpy(), self.y.cpu().numpy(), self.is_new, *rows):
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


def _inputs(client: str, split: str, x: ArrayLike) -> NDArray[Any]:
    x = _array(client, f"x_{split}", x)
    if x.size == 0 and split == "test":
        return np.empty((0, 1), dtype=np.float32)
    if x.ndim < 2:
        raise UserError(f"client {client!r}: x_{split} must be rows of features, got shape {x.shape}")
    if x.dtype.kind not in "fiub":
        raise UserError(f"client {client!r}: x_{split} holds {x.dtype}, not numbers")
    if x.dtype.kind == "f":
        bad = np.flatnonzero(~np.isfinite(x).all(axis=tuple(range(1, x.ndim))))
        if len(bad):
            raise UserError(
                f"client {client!r}: x_{split} row {bad[0]} is not finite (NaN or infinity); mend or drop it"
            )
    return x.astype(np.float32) if x.dtype != np.float64 else x


def _array(client: str, name: str, values: ArrayLike) -> NDArray[Any]:
    try:
        return np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"client {client!r}: {name} is not an array: {error}") from None


def _labels(client: str, split: str, y: ArrayLike) -> NDArray[Any]:
    y = _array(client, f"y_{split}", y)
    if y.size == 0 and split == "test":
        return np.empty(0, dtype=np.int64)
    if y.ndim != 1:
        raise UserError(f"client {client!r}: y_{split} must be one label a row, got shape {y.shape}")
    if y.dtype.kind == "f":
        bad = np.flatnonzero(~np.isfinite(y) | (y != np.round(y)))
        if len(bad):
            raise UserError(f"client {client!r}: y_{split} row {bad[0]} is {y[bad[0]]}, not a class label")
    if y.dtype.kind == "O" and all(isinstance(label, str) for label in y):
        y = y.astype(str)
    if y.dtype.kind in "fiub":
        y = y.astype(np.int64)
    elif y.dtype.kind != "U":
        raise UserError(f"client {client!r}: y_{split} mixes kinds of labels; make them all integers or all strings")
    return y


def _check_client(
    client: str, split: str, x: NDArray[Any], y: NDArray[Any], own: NDArray[Any], before: Sequence[NDArray[Any]]
) -> None:
    if len(x) != len(y):
        raise UserError(f"client {client!r}: {len(x)} rows in x_{split} but {len(y)} labels in y_{split}")
    if split == "train" and not len(y):
        raise UserError(f"client {client!r} has no training example; give it some or leave it out")
    if before and len(x) and x.shape[1:] != before[0].shape[1:]:
        raise UserError(f"client {client!r}: x_{split} rows have shape {x.shape[1:]}, others {before[0].shape[1:]}")
    bad = np.flatnonzero(~np.isin(y, own))
    if len(bad):
        raise UserError(
            f"client {client!r}: y_{split} row {bad[0]} has label {y[bad[0]]!r}, outside its set {own.tolist()}; "
            "declare it with classes={...} or drop the row"
        )
