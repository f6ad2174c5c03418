"""Charts with several curves, as both the page and the SVG file of an experiment draw them."""

from collections.abc import Sequence
from typing import NamedTuple

from coterie.report.looks import PALETTE

DASHES = ("solid", "dash", "dot")
"""Dash styles, by the names of Plotly."""
FEW = 8
"""Curves with at most this many points also show the points."""


class Line(NamedTuple):
    """One curve of a panel."""

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    """Values, or None where there is none."""
    color: int
    """Index into the palette."""
    dash: str = "solid"
    """One of `DASHES`."""
    listed: bool = True
    """Whether the curve is in the legend."""


class Panel(NamedTuple):
    """A chart with several curves."""

    title: str
    axis: str
    """Title of the vertical axis."""
    lines: Sequence[Line]
    caption: str = ""
    across: str = "communication round"
    """Title of the horizontal axis."""
    logarithmic: bool = True
    """Whether the vertical axis is logarithmic."""


class Bars(NamedTuple):
    """A chart with a horizontal bar for each name, from zero on."""

    title: str
    axis: str
    """Title of the axis of values."""
    names: Sequence[str]
    values: Sequence[float]
    unit: str = ""
    """Unit of the values, which get decimal prefixes."""
    caption: str = ""


Drawing = Panel | Bars
"""What a figure consists of."""


def drawn_points(line: Line, logarithmic: bool) -> list[tuple[float, float]]:
    """Return the points of a curve that its axis can show: finite, and positive on a logarithmic axis."""
    points = zip(line.x, line.y, strict=False)
    return [(x, y) for x, y in points if y is not None and abs(y) < float("inf") and (y > 0 or not logarithmic)]


def look(place: int) -> tuple[int, str]:
    """Return the colour and the dash style of the first, second, ... of many curves. No two of them look the same."""
    return place % len(PALETTE), DASHES[place // len(PALETTE) % len(DASHES)]
