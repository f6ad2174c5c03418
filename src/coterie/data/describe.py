"""A data set and a federation made of it, as tables for the terminal."""

import numpy as np
from numpy.typing import NDArray
from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.markup import escape
from rich.table import Table

from coterie.federation import Examples, Federation

_BARS = 30
_WIDTH = 24
_BINS = 10


def described(examples: Examples) -> Group:
    """Counts, shape, classes, groups, and how many examples each class has."""
    facts = _table("examples", "train", "test", "shape", "classes", "groups")
    groups = "-" if examples.groups is None else f"{len(examples.groups.names):,}"
    shape = "x".join(map(str, examples.x_train.shape[1:]))
    sizes = f"{len(examples.y_train):,}", f"{len(examples.y_test):,}"
    facts.add_row("", *sizes, shape, f"{len(examples.labels):,}", groups)

    count = len(examples.labels)
    train, test = (np.bincount(y, minlength=count) for y in (examples.y_train, examples.y_test))
    classes = _table("class", "train", "test", "")
    for label in range(min(count, _BARS)):
        bar = _bar(train[label], train.max())
        classes.add_row(escape(str(examples.labels[label])), f"{train[label]:,}", f"{test[label]:,}", bar)
    if count > _BARS:
        classes.add_row(f"... {count - _BARS:,} more", _range(train), _range(test), "least to most, of all")
    return Group(facts, classes)


def dealt(federation: Federation) -> Group:
    """Clients, their sizes and their classes, and how many clients have how many examples."""
    facts = _table(f"{len(federation.existing):,} clients, {len(federation.new):,} new users", "min", "median", "max")
    rows = {f"{split} examples": federation.sizes(split) for split in federation.splits}
    for name, values in {**rows, "classes": federation.classes.lengths()}.items():
        facts.add_row(name, *(f"{value:,.10g}" for value in (values.min(), np.median(values), values.max())))

    counts, edges = np.histogram(federation.sizes(), bins=min(_BINS, int(np.ptp(federation.sizes())) + 1))
    sizes = _table("train examples", "clients", "")
    for low, high, number in zip(edges[:-1], edges[1:], counts, strict=True):
        sizes.add_row(f"{low:,.0f} to {high:,.0f}", f"{number:,}", _bar(number, counts.max()))
    return Group(facts, sizes)


def _table(first: str, *others: str) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column(first)
    for heading in others:
        table.add_column(heading, justify="right" if heading else "left")
    return table


def _bar(value: int, largest: int) -> str:
    return "█" * round(_WIDTH * value / max(largest, 1)) or ("▏" if value else "")


def _range(counts: NDArray[np.int64]) -> str:
    return f"{counts.min():,} to {counts.max():,}"
