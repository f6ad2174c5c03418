"""Counts over a data set and its clients: classes or tokens, numbers of examples, and ranges of regression targets."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coterie.data.examples import Examples
from coterie.data.federation import Federation

Counts = NDArray[np.int64]
DECILES = (0.1, 0.9)
PAGE_CLIENTS, PAGE_CLASSES = 1000, 600
"""Largest numbers of clients and of classes that a page draws, about a pixel each."""
PAGE_BINS = 40
"""Number of bins of a histogram on a page."""


class Asked(NamedTuple):
    """Words for what a model predicts for an example."""

    one: str
    many: str
    counted: str
    """Words for what is counted per class, token or target."""


CLASS = Asked("class", "classes", "training examples")
TOKEN = Asked("token", "tokens", "training positions")
TARGET = Asked("target", "targets", "training examples")


class ClassMap(NamedTuple):
    """Number of training examples of each client in each class.

    If there is too much to draw, it has a sample of the clients, and neighbouring classes are merged.
    """

    clients: list[str]
    is_new: list[bool]
    classes: list[str]
    counts: Counts  # (clients, classes)
    caption: str


class TargetRanges(NamedTuple):
    """Mean and deciles of each client's regression targets, for a sample of clients if there are too many to draw."""

    clients: list[str]
    is_new: list[bool]
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    """First decile of each client's targets."""
    high: NDArray[np.float64]
    """Last decile of each client's targets."""
    caption: str


class Bins(NamedTuple):
    """Bins of a histogram, and the bin of each value."""

    names: list[str]
    of_value: Counts
    """Index of the bin of each value."""

    def tally(self, where: NDArray[np.bool_] | slice = slice(None)) -> Counts:
        """Count the selected values in each bin."""
        return np.bincount(self.of_value[where], minlength=len(self.names))


def asked(data: Examples | Federation) -> Asked:
    """Return whether the data ask for a class, for tokens or for a real number."""
    y = data.y_train if isinstance(data, Examples) else data.y.cpu().numpy()
    if y.dtype.kind not in "iu":
        return TARGET
    return CLASS if y.ndim == 1 else TOKEN


def facts(examples: Examples) -> dict[str, int | str | None]:
    """Return the size and shape of a data set by name. None stands for something that this data set does not have."""
    labels, groups, edges = examples.labels, examples.groups, examples.edges
    return {
        "train": len(examples.y_train),
        "test": len(examples.y_test),
        "shape": "x".join(map(str, examples.x_train.shape[1:])),
        **({asked(examples).many: len(labels)} if labels else {}),
        "groups": None if groups is None else len(groups.names),
        **({} if edges is None else {"edges": edges.shape[1] // 2}),
    }


def class_totals(examples: Examples) -> tuple[Counts, Counts]:
    """Count each class or token in the train set and in the test set. Negative labels are padding."""
    train, test = (np.bincount(y[y >= 0], minlength=len(examples.labels)) for y in (examples.y_train, examples.y_test))
    return train, test


def classes_per_client(federation: Federation) -> Counts:
    """Count each client's training examples per class, or its training positions per token: (clients, classes)."""
    rows, width = federation.splits["train"], len(federation.labels)
    y = federation.y.cpu().numpy()[rows.values].reshape(len(rows.values), -1)
    client = np.repeat(np.arange(len(federation.ids)), rows.lengths())
    cells = (client[:, None] * width + y)[y >= 0]
    return np.bincount(cells, minlength=len(federation.ids) * width).reshape(-1, width)


def variety(federation: Federation) -> Counts:
    """Count the classes in each client's label set, or the different tokens that it trains on."""
    if asked(federation) is CLASS:
        return federation.classes.lengths()
    return np.asarray((classes_per_client(federation) > 0).sum(axis=1))


def class_map(federation: Federation, most_clients: int, most_classes: int) -> ClassMap:
    """Count examples per client and class, with clients ordered by their most frequent class and then by mean class.

    This order shows a staircase if clients specialize in classes. New users come last.
    """
    counts, what = classes_per_client(federation), asked(federation)
    mean = counts @ np.arange(counts.shape[1]) / np.maximum(counts.sum(axis=1), 1)
    order = np.lexsort((mean, counts.argmax(axis=1), federation.is_new))
    taken, caption = _sample(order, federation, most_clients, f"main {what.one}")
    totals, names, step = together(counts[taken], federation.labels, most_classes)
    if step > 1:
        caption = f"{step:,} {what.many} per column, {caption}"
    return ClassMap(*_who(taken, federation), names, totals, caption)


def target_ranges(federation: Federation, most_clients: int) -> TargetRanges:
    """Return each client's mean target and deciles, ordered by mean, with new users last."""
    y, rows = federation.y.cpu().numpy().astype(np.float64), federation.splits["train"]
    own = [y[rows.row(i)] for i in range(len(federation.ids))]
    means = np.array([values.mean() for values in own])
    taken, caption = _sample(np.lexsort((means, federation.is_new)), federation, most_clients, "mean target")
    low, high = np.array([np.quantile(own[i], DECILES) for i in taken]).T
    return TargetRanges(*_who(taken, federation), means[taken], low, high, caption)


def together(counts: Counts, labels: Sequence[Any], most: int) -> tuple[Counts, list[str], int]:
    """Merge every `step` neighbouring classes, so that at most `most` are left. Returns (sums, names, step)."""
    step = -(-len(labels) // most)
    starts = range(0, len(labels), step)
    ends = [min(start + step, len(labels)) - 1 for start in starts]
    names = [_between(label_name(labels[a]), label_name(labels[b])) for a, b in zip(starts, ends, strict=True)]
    return np.add.reduceat(counts, np.array(starts), axis=-1), names, step


def whole_bins(values: Counts, most: int) -> Bins:
    """Make at most `most` bins of equal width for integers. Both ends of a bin belong to it."""
    low, high = int(values.min()), int(values.max())
    step = -(-(high - low + 1) // most)
    names = [_between(f"{a:,}", f"{min(a + step - 1, high):,}") for a in range(low, high + 1, step)]
    return Bins(names, (values - low) // step)


def real_bins(values: NDArray[Any], most: int) -> Bins:
    """Make `most` bins of equal width for real numbers. Except in the last bin, the upper end is excluded."""
    edges = np.histogram_bin_edges(values.astype(np.float64), bins=most)
    digits = max(0, 1 - math.floor(math.log10(edges[1] - edges[0])))  # as many as tell neighbours apart
    names = [f"{a:,.{digits}f} to {b:,.{digits}f}" for a, b in pairwise(edges)]
    return Bins(names, np.searchsorted(edges[1:-1], values.astype(np.float64), side="right"))


def label_name(label: Any) -> str:
    """Return the label as text, quoted if it would not be visible, such as a space or a line break."""
    text = str(label)
    return text if text.isprintable() and text.strip() else repr(text)


def of_examples(examples: Examples) -> dict[str, Any]:
    """Return the counts that the page of a data set shows."""
    what = asked(examples)
    if what is TARGET:
        every = np.append(examples.y_train, examples.y_test)
        bins, step = real_bins(every, PAGE_BINS), 1
        is_train = np.arange(len(every)) < examples.y_train.size
        names, train, test = bins.names, bins.tally(is_train), bins.tally(~is_train)
    else:
        both, names, step = together(np.stack(class_totals(examples)), examples.labels, PAGE_CLASSES)
        train, test = both
    totals = {"names": names, "train": train.tolist(), "test": test.tolist(), "step": step}
    return {"asked": what._asdict(), "facts": facts(examples), "totals": totals}


def of_clients(federation: Federation) -> dict[str, Any]:
    """Return the counts that the page of a data set shows about its clients."""
    what = asked(federation)
    held: dict[str, Any] = {}
    if what is TARGET:
        held["spread"] = _plain(target_ranges(federation, PAGE_CLIENTS))
    else:
        held["map"] = _plain(class_map(federation, PAGE_CLIENTS, PAGE_CLASSES))
        held["variety"] = _by_role(variety(federation), federation)
    return {
        "existing": len(federation.existing),
        "new": len(federation.new),
        "ranges": {name: list(each) for name, each in ranges(federation).items()},
        "sizes": _by_role(federation.sizes(), federation),
        **held,
    }


def ranges(federation: Federation) -> dict[str, tuple[float, float, float]]:
    """Return minimum, median and maximum over clients of everything that is counted per client."""
    what = asked(federation)
    counts = {f"{split} examples": federation.sizes(split) for split in federation.splits}
    if what is not TARGET:
        counts[what.many] = variety(federation)
    return {name: (float(n.min()), float(np.median(n)), float(n.max())) for name, n in counts.items()}


def _by_role(values: Counts, federation: Federation) -> dict[str, Any]:
    bins = whole_bins(values, PAGE_BINS)
    existing, new = bins.tally(~federation.is_new), bins.tally(federation.is_new)
    return {"names": bins.names, "existing": existing.tolist(), "new": new.tolist()}


def _plain(part: ClassMap | TargetRanges) -> dict[str, Any]:
    return {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in part._asdict().items()}


def _sample(order: Counts, federation: Federation, most: int, by: str) -> tuple[Counts, str]:
    step = -(-len(order) // most)
    number = len(federation.ids)
    who = f"all {number:,} clients" if step == 1 else f"every {_ordinal(step)} of {number:,} clients"
    return order[::step], f"{who}, ordered by {by}" + (", new users last" if len(federation.new) else "")


def _who(taken: Counts, federation: Federation) -> tuple[list[str], list[bool]]:
    return [label_name(federation.ids[i]) for i in taken], federation.is_new[taken].tolist()


def _between(first: str, last: str) -> str:
    return first if first == last else f"{first} to {last}"


def _ordinal(number: int) -> str:
    tens, ones = number // 10 % 10, number % 10
    return f"{number:,}" + ("th" if tens == 1 else {1: "st", 2: "nd", 3: "rd"}.get(ones, "th"))
