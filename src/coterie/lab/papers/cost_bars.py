"""Bar charts of what methods cost until their best round."""

import statistics
from collections.abc import Sequence

from coterie.lab.papers.comparison import Row
from coterie.lab.papers.user_tables import picks
from coterie.report.panels import Bars

CAPTION = (
    "Sums over all clients, up to the round with the best validation score, mean over seeds. A method with several "
    "settings is shown with the one that has the best validation score."
)


def cost_bars(rows: Sequence[Row], data: str = "") -> list[list[Bars]]:
    """Return the bytes and the operations of the best run of each method, with a pair of charts for each data set.

    Args:
        rows: rows of the table. Those that are not measured or have no validation score are omitted.
        data: name of the data set, if it is not an axis of the experiment.
    """
    by_data: dict[str, list[Row]] = {}
    for row in rows:
        by_data.setdefault(row.at.get("data", data), []).append(row)
    found = {title: picks(group) for title, group in by_data.items()}
    return [[_bars(title, best, *each) for each in QUANTITIES] for title, best in found.items() if best]


QUANTITIES = (("bytes sent in both directions", "bytes", "B"), ("floating-point operations of clients", "flops", ""))
"""Charts of each data set: title of the axis, attribute of a picked round, and unit."""


def _bars(data: str, best: dict[str, Row], axis: str, name: str, unit: str) -> Bars:
    picked = {method: [run.picked for run in row.runs if run.picked] for method, row in best.items()}
    means = [statistics.fmean(getattr(each, name) for each in runs) for runs in picked.values()]
    return Bars(f"{data}, costs", axis, list(picked), means, unit, CAPTION)
