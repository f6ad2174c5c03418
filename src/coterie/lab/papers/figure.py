"""The figure of an experiment: panels from the curves of its cells, and the files that show them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from coterie.report.lab_page import lab_page
from coterie.report.panels import Drawing, Line, Panel, look
from coterie.report.svg import svg
from coterie.report.tables import Table
from coterie.storage.files import write_atomically

if TYPE_CHECKING:
    from coterie.lab.papers.comparison import Row

PLAIN = ("data", "method", "aggregation", "part", "setting", "column", "kind")
"""Axes whose values are understood without the name of the axis."""


class Quantity(NamedTuple):
    """What a panel shows of a curve."""

    axis: str
    """Title of the vertical axis."""
    name: str
    """Attribute of a point."""
    logarithmic: bool
    caption: str


ACCURACY = Quantity("test accuracy (%)", "accuracy", False, "Accuracy under the protocol of the table.")
LOSS = Quantity("training loss", "loss", True, "Training loss of all existing users.")
TRAIN_ACCURACY = Quantity(
    "training accuracy (%)", "train_accuracy", False, "Training accuracy of all existing users as they are."
)


def curve_panels(
    rows: Sequence["Row"], along: Sequence[str], quantities: Sequence[Quantity] = (ACCURACY, LOSS)
) -> list[list[Panel]]:
    """Return quantities of the runs against rounds, with the curves of comparable rows in one panel.

    Args:
        rows: rows of the table. Those without a curve of at least two points are omitted.
        along: axes of the experiment that distinguish the curves of a panel. There is a panel for each combination of
            the others.
        quantities: panels of each place.
    """
    drawn = [row for row in rows if _is_drawn(row)]
    names = list(dict.fromkeys(_named(row.at, along) for row in rows))
    places = dict.fromkeys(tuple((axis, row.at[axis]) for axis in row.at if axis not in along) for row in drawn)
    figure = []
    for place in places:
        of_place = {_named(row.at, along): row.curve for row in drawn if dict(place).items() <= row.at.items()}
        title = ", ".join(_told(axis, value) for axis, value in place)
        looks = [(name, curve, *look(names.index(name))) for name, curve in of_place.items() if curve]
        figure.append(
            [
                Panel(
                    title,
                    quantity.axis,
                    [
                        Line(
                            name,
                            [point.round for point in curve],
                            [getattr(point, quantity.name) for point in curve],
                            color,
                            dash,
                        )
                        for name, curve, color, dash in looks
                    ],
                    quantity.caption,
                    logarithmic=quantity.logarithmic,
                )
                for quantity in quantities
            ]
        )
    return figure


def without_curve(rows: Sequence["Row"]) -> list[str]:
    """Return a note on finished rows without a curve, if others have one."""
    missing = [" ".join(row.at.values()) for row in rows if row.runs and not _is_drawn(row)]
    if not missing or not any(_is_drawn(row) for row in rows):
        return []
    return [f"Not in the figure, as they have no curve or one of a single point: {'; '.join(missing)}."]


def _is_drawn(row: "Row") -> bool:
    """Return whether a row has a curve, of at least two points."""
    return row.curve is not None and len(row.curve) > 1


def write_figure(
    out: Path,
    title: str,
    facts: Sequence[str],
    tables: Sequence[Table],
    panels: Sequence[Sequence[Drawing]],
    notes: Sequence[str] = (),
) -> None:
    """Write the figure as figure.svg, and as page.html together with the tables."""
    write_atomically(out / "page.html", lab_page(title, facts, tables, panels).encode())
    write_atomically(out / "figure.svg", svg(title, panels, notes).encode())


def _named(at: Mapping[str, str], along: Sequence[str]) -> str:
    return ", ".join(_told(axis, at[axis]) for axis in along if at.get(axis, "none") != "none")


def _told(axis: str, value: str) -> str:
    """Return a value on an axis as a part of a title."""
    if axis == "degree":
        return f"{value} personalization"
    return value if axis in PLAIN else f"{axis} = {value}"
