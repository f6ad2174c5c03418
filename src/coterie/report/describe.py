"""A data set and its clients in the terminal: tables, histograms and a heat map."""

import numpy as np
from numpy.typing import NDArray
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from coterie.data.examples import Examples
from coterie.data.federation import Federation
from coterie.report import census
from coterie.report.census import TARGET, Asked, Bins, Counts

_BARS = 30
_WIDTH = 24
_BINS = 10
_ROWS = 50
_NAME = 16
_CELL = 6
_STRIP = 36
_SHADES = " ░▒▓█"
_COLOR = "#1e64f2"


def described(examples: Examples) -> Group:
    """Describe a data set: its size and shape, and a histogram of its classes or targets."""
    what, facts = census.asked(examples), census.facts(examples)
    table = _table("examples", *facts)
    table.add_row(
        "", *("-" if fact is None else fact if isinstance(fact, str) else f"{fact:,}" for fact in facts.values())
    )
    if what is TARGET:
        return Group(table, _histogram("target", "train examples", census.real_bins(examples.y_train.ravel(), _BINS)))
    return Group(table, _classes(what, examples))


def dealt(federation: Federation) -> Group:
    """Describe a federation: ranges per client, a histogram of sizes, and which client has which classes or targets."""
    facts = _table(f"{len(federation.existing):,} clients, {len(federation.new):,} new users", "min", "median", "max")
    for name, values in census.ranges(federation).items():
        facts.add_row(name, *(f"{value:,.10g}" for value in values))
    sizes = _histogram("train examples", "clients", census.whole_bins(federation.sizes(), _BINS))
    what = census.asked(federation)
    held: RenderableType = _spread(federation) if what is TARGET else HeatMap(federation)
    return Group(facts, sizes, "", held)


class HeatMap:
    """A line for each client and a column for each class, as far as the terminal has room.

    The character shows the number of examples, so that the map is readable without colour and on any background.
    """

    def __init__(self, federation: Federation) -> None:
        self.federation = federation

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        names = min(_NAME, max(map(cell_len, self.federation.ids)))
        margin = names + (5 if len(self.federation.new) else 1)
        room = max(10, options.max_width - margin)
        drawn = census.class_map(self.federation, _ROWS, room)
        longest = max(map(len, drawn.classes))
        cell = max(1, min(longest + 1, _CELL, room // len(drawn.classes)))
        yield Text(f"{census.asked(self.federation).counted}: {drawn.caption}")
        yield _line(" " * margin + _heading(drawn.classes, cell))
        bounds = _bounds(int(drawn.counts.max()))
        for name, is_new, levels in zip(
            drawn.clients, drawn.is_new, np.searchsorted(bounds, drawn.counts).tolist(), strict=True
        ):
            who = set_cell_size(_cut(name, names), names) + (" new" if is_new else "")
            yield _line(set_cell_size(who, margin)).append("".join(_SHADES[level] * cell for level in levels), _COLOR)
        yield _key(bounds)


def _bounds(most: int) -> Counts:
    """Return the largest count of each shade. The first is 0; the others divide the square root evenly.

    Small counts therefore remain visible next to large ones.
    """
    return most * np.arange(len(_SHADES)) ** 2 // (len(_SHADES) - 1) ** 2


def _key(bounds: Counts) -> Text:
    key = Text()
    for shade, low, high in zip(_SHADES[1:], bounds[:-1] + 1, bounds[1:], strict=True):
        if low <= high:
            key.append(shade * 2, _COLOR).append(f" {low:,}" + (f" to {high:,}" if high > low else "") + "   ")
    return key


def _heading(classes: list[str], cell: int) -> str:
    """Return each class above its column, or only the first and the last class if their names are too long."""
    longest = max(map(len, classes))
    if longest <= cell or cell > 3:
        return "".join(set_cell_size(_cut(name, cell if longest <= 1 else cell - 1), cell) for name in classes)
    width = cell * len(classes)
    first, last = (_cut(name, max(1, width // 2 - 1)) for name in (classes[0], classes[-1]))
    return first + " " * (width - len(first) - len(last)) + last


def _line(text: str) -> Text:
    return Text(text, no_wrap=True, overflow="crop")


def _cut(text: str, width: int) -> str:
    """Shorten the text in its middle, as many names begin alike."""
    return text if len(text) <= width else text[: width // 2] + "…" + text[len(text) - (width - 1) // 2 :]


def _spread(federation: Federation) -> Table:
    """Draw each client's mean target, and the range from its first to its last decile."""
    drawn = census.target_ranges(federation, _ROWS)
    low, high = min(drawn.low.min(), drawn.mean.min()), max(drawn.high.max(), drawn.mean.max())
    scale = (_STRIP - 1) / ((high - low) or 1.0)
    table = _table("client", "mean", "10 %", "90 %", "")
    table.title, table.title_justify, table.title_style = f"target: {drawn.caption}", "left", ""
    for name, is_new, *values in zip(drawn.clients, drawn.is_new, drawn.mean, drawn.low, drawn.high, strict=True):
        mean, first, last = (round((value - low) * scale) for value in values)
        strip = " " * first + "─" * (last - first + 1)
        strip = f"{strip:{_STRIP}}"
        who = escape(_cut(name, _NAME)) + (" new" if is_new else "")
        table.add_row(who, *(f"{value:,.4g}" for value in values), strip[:mean] + "●" + strip[mean + 1 :])
    return table


def _classes(what: Asked, examples: Examples) -> Table:
    count = len(examples.labels)
    train, test = census.class_totals(examples)
    classes = _table(what.one, "train", "test", "")
    for label in range(min(count, _BARS)):
        name = escape(census.label_name(examples.labels[label]))
        classes.add_row(name, f"{train[label]:,}", f"{test[label]:,}", _bar(train[label], train.max()))
    if count > _BARS:
        classes.add_row(f"... {count - _BARS:,} more", _range(train), _range(test), "range over all")
    return classes


def _histogram(what: str, counted: str, bins: Bins) -> Table:
    table, counts = _table(what, counted, ""), bins.tally()
    for name, number in zip(bins.names, counts, strict=True):
        table.add_row(name, f"{number:,}", _bar(number, counts.max()))
    return table


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
