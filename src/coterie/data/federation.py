"""Federations: many clients, each with its own examples and its own label set, stored in shared arrays."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from coterie.core.data import Data, Graph, Index
from coterie.core.method import Labels
from coterie.core.objective import Classification, Objective, Regression
from coterie.data.examples import Assignment, Choices, Examples
from coterie.data.graphs import Graphs
from coterie.data.ragged import Ragged
from coterie.errors import UserError


@dataclass(frozen=True, repr=False, eq=False)
class Federation:
    """Many clients with their examples and label sets.

    Clients are numbered by their position in `ids`, and labels by their position in `labels`.
    """

    ids: tuple[str, ...]
    labels: tuple[Any, ...]
    x: Tensor
    y: Tensor
    splits: dict[str, Ragged]
    """Rows of `x` and `y` that belong to each client, for "train", "test" and optionally "validation"."""
    classes: Ragged
    """Label set of each client, sorted."""
    is_new: NDArray[np.bool_]
    """Whether each client is a new user, held out of training."""
    edges: Index | None = None
    """(2, E) edges between rows of `x` if the examples are nodes of a graph. Edges between two clients are ignored."""

    def __post_init__(self) -> None:
        empty = np.flatnonzero(self.splits["train"].lengths() == 0)
        if len(empty):
            raise UserError(f"client {self.ids[empty[0]]!r} has no training examples; add some or remove the client")

    @staticmethod
    def from_arrays(clients: Mapping[str, Sequence[ArrayLike]], **choices: Unpack[Choices]) -> "Federation":
        """Build a federation from arrays.

        `clients` maps each client to (x, y), (x_train, y_train, x_test, y_test), or these four followed by x_val and
        y_val. A client's label set is the classes it trains on, unless `classes` declares a larger one.
        """
        from coterie.data.own.arrays import from_arrays

        return from_arrays(clients, **choices)

    @staticmethod
    def from_table(
        table: Any,
        *,
        client: str = "site",
        label: str = "y",
        split: str | None = None,
        features: Sequence[str] | None = None,
        **choices: Unpack[Choices],
    ) -> "Federation":
        """Build a federation from a CSV file, a Parquet file or a data frame.

        `client` and `label` name the columns that identify the client and hold the label. The optional column `split`
        says train, test or validation. By default, all other columns are features; they must be numeric.
        """
        from coterie.data.own.table import from_table

        return from_table(table, client=client, label=label, split=split, features=features, **choices)

    @staticmethod
    def from_folder(
        folder: str | Path,
        *,
        label: str = "y",
        split: str | None = None,
        features: Sequence[str] | None = None,
        size: tuple[int, int] | None = None,
        grey: bool = False,
        **choices: Unpack[Choices],
    ) -> "Federation":
        """Build a federation from a folder with one entry for each client.

        An entry is an npz, CSV or Parquet file, or a folder of images sorted by class. `label`, `split` and `features`
        name columns of tables. `size` (height, width) resizes images, and `grey` converts them to greyscale.
        """
        from coterie.data.own.folder import from_folder

        return from_folder(folder, label=label, split=split, features=features, size=size, grey=grey, **choices)

    @staticmethod
    def from_datasets(
        dataset: Any, *, client: str, label: str, features: str | Sequence[str], **choices: Unpack[Choices]
    ) -> "Federation":
        """Build a federation from a Hugging Face dataset, or from a dict of datasets by split.

        `features` is a column of arrays or images, or a list of numeric columns.
        """
        from coterie.data.own.datasets import from_datasets

        return from_datasets(dataset, client=client, label=label, features=features, **choices)

    @classmethod
    def assemble(cls, examples: Examples, assignment: Assignment) -> "Federation":
        """Build a federation from a data set and a partition of it."""
        shift = 0 if assignment.resplit else len(examples.y_train)
        splits = {"train": Ragged.of(assignment.train), "test": Ragged.of([rows + shift for rows in assignment.test])}
        if len(assignment.validation):
            splits["validation"] = Ragged.of(assignment.validation)
        rows = np.concatenate([split.values for split in splits.values()])
        if examples.edges is None and len(np.unique(rows)) == len(rows):
            # No example belongs to two clients, so each client can have its own block.
            x = _dealt(splits, shift, examples.x_train, examples.x_test)
            y = _dealt(splits, shift, examples.y_train, examples.y_test)
            ends = np.cumsum([len(split.values) for split in splits.values()]).tolist()
            splits = {
                name: Ragged(np.arange(end - len(split.values), end), split.offsets)
                for (name, split), end in zip(splits.items(), ends, strict=True)
            }
        else:
            x = np.concatenate([examples.x_train, examples.x_test])
            y = np.concatenate([examples.y_train, examples.y_test])
        return cls(
            ids=tuple(assignment.names or map(str, range(len(assignment.train)))),
            labels=examples.labels,
            x=torch.from_numpy(x),
            y=torch.from_numpy(y),
            splits=splits,
            classes=Ragged.of(assignment.classes),
            is_new=assignment.is_new,
            edges=examples.edges,
        )

    def relabelled(self, labels: tuple[Any, ...]) -> "Federation":
        """Return the federation with its labels numbered by their places in `labels`, which has all of them."""
        if unknown := [label for label in self.labels if label not in labels]:
            raise UserError(f"labels {unknown} are not among those of the federation: {list(labels)}")
        place = np.array([labels.index(label) for label in self.labels], dtype=np.int64)
        rows = [np.sort(place[self.classes.row(i)]) for i in range(len(self.ids))]
        y = torch.where(self.y < 0, self.y, torch.from_numpy(place).to(self.y.device)[self.y])
        return replace(self, labels=labels, y=y, classes=Ragged.of(rows))

    def to(self, dtype: torch.dtype, device: torch.device) -> "Federation":
        """Return a copy on `device`, with floating-point inputs and targets converted to `dtype`."""
        x = self.x.to(device, dtype if self.x.is_floating_point() else None)
        if not torch.isfinite(torch.stack(torch.aminmax(x))).all():
            raise UserError(f"some inputs are too large for {dtype}; scale them or use float64")
        return replace(self, x=x, y=self.y.to(device, dtype if self.y.is_floating_point() else None))

    def __repr__(self) -> str:
        """Return the numbers of clients, examples and classes. It shows no data, so it is safe to log."""
        examples = ", ".join(f"{rows.lengths().sum():,} {split}" for split, rows in self.splits.items())
        asked = f"{len(self.labels)} classes" if self.labels else "numbers to predict"
        return f"{_clients(len(self.existing), len(self.new))}, {examples} examples, {asked}"

    @cached_property
    def objective(self) -> Objective:
        """The objective: classification, or regression with the variance of the existing clients' training targets."""
        if not self.y.is_floating_point():
            return Classification()
        rows = np.concatenate([self.splits["train"].row(i) for i in self.existing])
        return Regression(float(self.y.cpu()[torch.from_numpy(rows)].to(torch.float64).var(correction=0)) or 1.0)

    @cached_property
    def existing(self) -> Index:
        """Numbers of the existing clients, which take part in training."""
        return np.flatnonzero(~self.is_new)

    @cached_property
    def new(self) -> Index:
        """Numbers of the new users, which are held out of training."""
        return np.flatnonzero(self.is_new)

    @cached_property
    def num_examples(self) -> int:
        """N, the number of training examples of all existing clients."""
        return int(self.sizes()[self.existing].sum())

    def sizes(self, split: str = "train") -> Index:
        """Return the number of examples each client has in a split."""
        return self._sizes[split]

    @cached_property
    def _sizes(self) -> dict[str, Index]:
        return {split: rows.lengths() for split, rows in self.splits.items()}

    def num_outputs(self, i: int, labels: Labels) -> int:
        """Return K_i, the number of outputs of the client's head."""
        return max(1, len(self.labels) if labels == "global" else len(self.classes.row(i)))

    def data(self, i: int, split: str, labels: Labels, stream: int = 0, num_outputs: int = 0) -> Data:
        """Return a client's examples, with labels numbered over all classes or over its own label set; see `gather`."""
        x, *others = (part[0] for part in self.gather([i], split, labels, [stream], num_outputs))
        if self.edges is not None:
            x = Graph(x, torch.from_numpy(self._graphs.edges(i)).to(x.device))
        return Data(x, *others)

    def inputs(self, i: int, split: str) -> Tensor:
        """Return a client's inputs: a view if its examples are consecutive, otherwise a copy."""
        rows = self.splits[split].row(i)
        if len(rows) and rows[-1] - rows[0] == len(rows) - 1 and (np.diff(rows) == 1).all():
            return self.x[int(rows[0]) : int(rows[-1]) + 1]
        return self.x[torch.from_numpy(rows).to(self.x.device)]

    @cached_property
    def _graphs(self) -> Graphs:
        assert self.edges is not None
        return Graphs.of(self.edges, self.splits, len(self.y))

    def gather(
        self,
        clients: Sequence[int],
        split: str,
        labels: Labels,
        streams: Sequence[int] | Index,
        num_outputs: int = 0,
        with_inputs: bool = True,
        may_view: bool = False,
    ) -> Data:
        """Return the examples of several clients, stacked and padded to the largest client.

        `labels` is "global" to number labels over all classes, or "local" to number them over each client's label set.
        `num_outputs` is the width of the heads if it is larger than the labels require. Without inputs, x is empty. The
        inputs are a copy, unless `may_view` is set and all rows are consecutive and none is padding.
        """
        picked = np.asarray(clients, dtype=np.int64)
        if self.edges is None:
            chosen, counted = self.splits[split].padded(picked)
        else:
            chosen, counted = self._graphs.nodes.padded(picked)
            counted = counted & (self._graphs.split[chosen] == split)
        own, owned = self.classes.padded(picked)  # (C, K)
        is_local = labels == "local" and bool(self.labels)
        width = max(num_outputs, 1, len(self.labels) if labels == "global" else own.shape[1])
        outputs = np.zeros((len(picked), width + 1), dtype=np.int64)
        np.put_along_axis(outputs, np.where(owned, np.arange(own.shape[1]) if is_local else own, width), 1, axis=1)
        ordered = np.where(owned, own, len(self.labels))
        parts = [chosen, counted, outputs[:, :-1], ordered, np.array(streams, dtype=np.int64)[:, None]]
        sent = torch.from_numpy(np.concatenate(parts, axis=1, dtype=np.int64)).to(self.y.device)  # all at once
        rows, mask, classes, known, stream = torch.split(sent, [part.shape[1] for part in parts], dim=1)
        y = self.y[rows]
        if is_local:
            place = torch.searchsorted(known.contiguous(), y.flatten(1)).clamp_(max=known.shape[1] - 1)
            y = torch.where(y < 0, y, place.reshape(y.shape))
        x = self.x.new_empty(*rows.shape, 0)
        if with_inputs:
            is_block = may_view and counted.size and counted.all() and (np.diff(chosen.ravel()) == 1).all()
            start = int(chosen[0, 0]) if is_block else 0
            x = self.x[start : start + chosen.size] if is_block else self.x.index_select(0, rows.flatten())
            x = x.reshape(*rows.shape, *self.x.shape[1:])
        return Data(x, y, mask.bool(), classes.bool(), stream[:, 0])

    def fingerprint(self) -> str:
        """Return a hash of the federation, to check that a run resumes on the data it started with."""
        digest = hashlib.sha256(repr((self.ids, self.labels, self.x.shape)).encode())
        rows = [part for ragged in (self.classes, *self.splits.values()) for part in ragged]
        rows += [] if self.edges is None else [self.edges]
        for array in (self.x.cpu().numpy(), self.y.cpu().numpy(), self.is_new, *rows):
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


def _dealt(splits: Mapping[str, Ragged], shift: int, train: NDArray[Any], test: NDArray[Any]) -> NDArray[Any]:
    """Return the rows of all splits, one split after the other.

    Rows of the split "test" are those of `test` from `shift` on. If `shift` is 0, all splits share the rows of both.
    """
    dtype = np.result_type(train, test)
    if not shift:
        train = test = np.concatenate([train, test])
    dealt = np.empty((sum(len(split.values) for split in splits.values()), *train.shape[1:]), dtype)
    end = 0
    for name, split in splits.items():
        source, first = (test, shift) if name == "test" else (train, 0)
        start, end = end, end + len(split.values)
        rows, out = split.values - first, dealt[start:end]
        assert not len(rows) or (rows.min() >= 0 and rows.max() < len(source)), "a row that does not exist"
        np.take(source.astype(dtype, copy=False), rows, axis=0, out=out, mode="clip")  # "raise" would copy twice
    return dealt


def _clients(existing: int, new: int) -> str:
    """Describe the number of clients, for example "50 clients and 10 new users"."""
    text = f"{existing:,} client{'' if existing == 1 else 's'}"
    return f"{text} and {new:,} new user{'' if new == 1 else 's'}" if new else text
