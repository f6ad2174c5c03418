"""Table 2 of the Scafflix paper: what its columns are by the code that made them, and what their names promise.

K. Yi, L. Condat, P. Richtárik, "Explicit Personalization and Local Training: Double Communication Acceleration in
Federated Learning", TMLR.

The authors made the table with FedCR's public code. In that code the method called FedSR never loads the shared model
into the network that it trains: each client trains a network with a random representation alone. The method called
FedPAC is FedRep with a weak pull of the features, without combining classifiers; the pull, towards one number for each
class, is left out here. Ditto and FedCR are what they are called. Fine-tuned FedAvg and local training of the plain
network, which that code also has, are not in the table.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from coterie.lab.papers.comparison import Row, text
from coterie.lab.papers.experiment import Experiment, Variant
from coterie.lab.papers.figure import curve_panels
from coterie.lab.papers.rates import best, remarks
from coterie.lab.papers.sheet import Sheet
from coterie.recipe import Tables, load
from coterie.report.panels import Panel
from coterie.report.tables import Table
from coterie.report.units import DASH

PUBLISHED: Mapping[str, Mapping[str, float]] = {
    "fashion-mnist": {"Ditto": 85.97, "FedSR-FT": 87.08, "FedPAC": 89.49, "FedCR": 93.77, "Scafflix": 89.62},
    "cifar-100": {"Ditto": 58.87, "FedSR-FT": 69.95, "FedPAC": 69.31, "FedCR": 78.49, "Scafflix": 72.37},
}
"""Published accuracies in percent, by data set and column. The paper gives no errors and no number of runs."""
OF_OTHERS = "cifar-100"
"""Data set that is run only if it is chosen with --data: a run takes hours."""
RATES = (0.01, 0.05, 0.25)
"""Learning rates that all methods choose from where the code names none."""
RATE = {
    "ditto": ("eta", "beta"),
    "fedpac": ("eta_f", "eta_g"),
    "fedrep": ("beta",),
    "local": ("beta",),
    "scafflix": ("gamma",),
}
"""Names of the learning rates of a method. Other methods call it "eta"."""


class Column(NamedTuple):
    """A column of the table, or one that should be beside it."""

    kind: str
    """Whether it is what the code under that name does ("as-run"), what the name promises ("as-named"), "both", or a
    column that the paper does not have ("beside")."""
    name: str
    method: str
    rate: float | None
    """Learning rate in that code's instructions, for CIFAR-100; None if there is none."""
    changes: Tables = {}  # noqa: RUF012 - never changed
    """Settings in which it differs from the method in the recipe."""


COLUMNS = (
    Column("both", "Ditto", "ditto", 0.5),
    Column("as-run", "FedSR-FT", "local", 0.005, {"model": {"latent": 256}, "method": {"adapts": "head"}}),
    Column("as-run", "FedPAC", "fedrep", 0.01),
    Column("as-named", "FedSR-FT", "fedsr", 0.005),
    Column("as-named", "FedPAC", "fedpac", 0.01),
    Column("both", "FedCR", "fedcr", 0.05),
    Column("both", "Scafflix", "scafflix", None),
    Column("beside", "FedAvg-FT", "fedavg", 0.01),
    Column("beside", "Local", "local", None),
)
"""All columns. One whose method the recipe does not list is omitted."""


class Table2(Experiment):
    """Scafflix, Table 2: its columns as they were run and as they are named, and what the table leaves out."""

    def variants(self) -> Iterator[Variant]:
        for data in PUBLISHED:
            recipe = f"scafflix/table2-{data}"
            methods = Sheet.of(load(recipe)).methods
            for column in COLUMNS:
                if column.method in methods:
                    yield from _of_rates(data, recipe, column)

    def choose(self, name: str, wanted: Mapping[str, Sequence[str]]) -> list[Variant]:
        return [each for each in super().choose(name, wanted) if "data" in wanted or each.at["data"] != OF_OTHERS]

    def table(self, rows: Sequence[Row]) -> Table:
        return compared(rows)

    def figure(self, rows: Sequence[Row]) -> list[list[Panel]]:
        return curve_panels(best(rows), ("column", "kind", "method", "rate"))


def _of_rates(data: str, recipe: str, column: Column) -> Iterator[Variant]:
    known = data == "cifar-100" and column.rate is not None
    for rate in (column.rate,) if known else RATES:
        options: dict[str, Any] = dict.fromkeys(RATE.get(column.method, ("eta",)), rate)
        at = {"data": data, "kind": column.kind, "column": column.name, "method": column.method, "rate": f"{rate:g}"}
        changes: Tables = {**column.changes, "method": {**column.changes.get("method", {}), **options}}
        yield Variant(at, recipe, changes, published="nothing")


def compared(rows: Sequence[Row]) -> Table:
    """Return a table with a line for each column of the paper's table, at the rate with the best validation score."""
    lines = []
    for row in best(rows):
        measured, printed = row.measured, PUBLISHED[row.at["data"]].get(row.at["column"])
        lines.append(
            [
                *(row.at[axis] for axis in ("data", "column", "kind", "method", "rate")),
                text(measured and measured.validation),
                row.told(text(measured and measured.figure)),
                DASH if printed is None else f"{printed:.2f}",
            ]
        )
    headings = ["data", "column", "column is", "method", "rate", "validation", "test", "published"]
    return Table(headings, lines, notes=[*NOTES, *remarks(rows)])


NOTES = (
    "Accuracy in percent, mean over clients ± standard error, after all clients have downloaded the shared part and "
    "trained for ten more epochs, most of them only the head; Scafflix without further training.",
    '"as-run" is what the public code does that made the table: its FedSR-FT is local training of a network with a '
    "random representation, and its FedPAC is FedRep (here without a weak further term). "
    '"as-named" is the method of that name, and "beside" is not in the paper.',
    "Published figures come without errors. Each line has the rate with the best validation score, or on CIFAR-100 the "
    "rate that the code's instructions name.",
)
