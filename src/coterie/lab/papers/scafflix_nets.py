"""Experiments of Scafflix with neural nets (sections 3.2 to 3.4), with every aggregation counted.

K. Yi, L. Condat, P. Richtárik, "Explicit Personalization and Local Training: Double Communication Acceleration in
Federated Learning", TMLR.

In the authors' code for neural nets, an aggregation follows every step, for any p. Control variates start at 0 in each
round, and the plots count 1/p aggregations as one round of Scafflix. Here Scafflix is Algorithm 1, and a round is one
aggregation. Other methods are compared at equal numbers of aggregations and at equal numbers of local gradients.
What the paper plots as Scafflix at round T is closest to FLIX with one local step per round after T/p rounds.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from coterie.lab.papers.comparison import Row, text
from coterie.lab.papers.experiment import Experiment, Variant
from coterie.lab.papers.figure import curve_panels
from coterie.lab.papers.measured import Percentage
from coterie.lab.papers.rates import best, remarks
from coterie.recipe import Tables, load
from coterie.report.panels import Panel
from coterie.report.tables import Table
from coterie.report.units import DASH

RATES: Mapping[str, Sequence[float]] = {
    "mnist-writers": (0.03, 0.1, 0.3, 1.0),
    "fashion-mnist": (0.03, 0.1, 0.3, 1.0),
    "shakespeare": (0.3, 1.0, 3.0),
    "femnist": (0.03, 0.1, 0.3, 1.0),
}
"""Learning rates that all methods choose from, by data set: the effective step of a client's model."""
OF_OTHERS = "femnist"
"""Data set that users must create themselves. It is run only if it is chosen with --data."""
ALPHAS = (0.1, 0.3, 0.5, 0.7, 0.9)
EXPONENTIAL = (0.0001, 0.001, 0.01, 0.1, 1.0)
"""Values of alpha on an exponential scale. The paper does not list its own."""
EPOCHS = (1, 5, 20, 50, 100)
"""Epochs of each client's search for its optimum. The paper has 50."""
CLIENTS = (1, 5, 10, 20)
COINS = ((0.1, 1), (0.2, 1), (0.2, 2), (0.5, 1), (0.5, 5))
"""Values of p, and multiples of the rounds: for equal aggregations, and for the local gradients of the first value."""
ABLATIONS = {
    "mnist-writers": ("alpha", "p", "clients"),
    "shakespeare": ("alpha",),
    "femnist": ("alpha", "p", "clients"),
}
FIGURE8 = ("full-batch", "exponential", "optima")
Options = dict[str, Any]


class Nets(Experiment):
    """Scafflix, neural nets: Table 1 and Figures 2, 3, 6 and 7, at equal aggregations and at equal local gradients."""

    def variants(self) -> Iterator[Variant]:
        for data in RATES:
            own = load(_recipe(data))["method"]
            yield from _methods(data, own)
            yield from _ablations(data, own, ABLATIONS.get(data, ()))

    def choose(self, name: str, wanted: Mapping[str, Sequence[str]]) -> list[Variant]:
        return [each for each in super().choose(name, wanted) if "data" in wanted or each.at["data"] != OF_OTHERS]

    def table(self, rows: Sequence[Row]) -> Table:
        return counted(rows)

    def figure(self, rows: Sequence[Row]) -> list[list[Panel]]:
        chosen = best(rows)
        by_alpha = [row for row in chosen if row.at["part"] == "alpha"]
        others = [_without(row, "rate") for row in chosen if row not in by_alpha]
        return [
            *curve_panels(others, ("method", "setting", "steps", "rounds")),
            *curve_panels([_without(row, "rate", "part", "rounds") for row in by_alpha], ("method", "steps")),
        ]


class Figure8(Nets):
    """Scafflix, neural nets: Figure 8 (full batches, alpha on an exponential scale), and epochs for local optima."""

    def variants(self) -> Iterator[Variant]:
        for data in ("mnist-writers", "femnist"):
            yield from _ablations(data, load(_recipe(data))["method"], FIGURE8)


def _recipe(data: str) -> str:
    return f"scafflix/{data}"


def _without(row: Row, *axes: str) -> Row:
    """Return the row without its place on some axes."""
    return replace(row, at={axis: value for axis, value in row.at.items() if axis not in axes})


def _methods(data: str, own: Options) -> Iterator[Variant]:
    """Yield each method with one or n local steps per round, FLIX also with n times as many rounds.

    The first variant has the local optima of clients alone, without training.
    """
    n, alpha = round(1 / own["p"]), own["alpha"]
    at = {"data": data, "part": "methods", "method": "flix"}
    alone: Tables = {"method": {"alpha": 0.0}, "run": {"rounds": 1}}
    yield Variant(
        {**at, "setting": "alpha=0", "steps": "0", "rounds": "0", "rate": "0"}, _recipe(data), alone, "nothing"
    )
    for method, steps, times in (
        ("fedavg", n, 1),
        ("flix", 1, 1),
        ("flix", n, 1),
        ("flix", 1, n),
        ("scaffnew", n, 1),
        ("scafflix", n, 1),
    ):
        for rate in RATES[data]:
            options: dict[str, Options] = {
                "fedavg": {"tau": steps, "eta": rate},
                "flix": {"tau": steps, "gamma": rate / alpha**2},
                "scaffnew": {"gamma": rate},
                "scafflix": {"gamma": rate},
            }
            setting = f"alpha={alpha if method in ('flix', 'scafflix') else 1}"
            yield _variant(data, "methods", method, setting, steps, times, rate, {"method": options[method]})


def _ablations(data: str, own: Options, wanted: Sequence[str]) -> Iterator[Variant]:
    """Yield variants of Scafflix, and FLIX at each alpha, at the learning rate of the recipe.

    `wanted` names the parts of the table.
    """
    n, rate = round(1 / own["p"]), own["gamma"]
    parts: dict[str, list[tuple[str, int, int, Tables]]] = {
        "alpha": [(f"alpha={alpha}", n, 1, {"method": {"alpha": alpha}}) for alpha in ALPHAS],
        "p": [(f"p={p}", round(1 / p), times, {"method": {"p": p}}) for p, times in COINS],
        "clients": [(f"clients={r}", n, 1, {"run": {"clients_per_round": r}}) for r in CLIENTS],
        "full-batch": [(f"alpha={alpha}", n, 1, {"method": {"alpha": alpha, "batch_size": 0}}) for alpha in ALPHAS],
        "exponential": [(f"alpha={alpha:g}", n, 1, {"method": {"alpha": alpha}}) for alpha in EXPONENTIAL],
        "optima": [(f"epochs={epochs}", n, 1, {"method": {"optimum_epochs": epochs}}) for epochs in EPOCHS],
    }
    for part in wanted:
        for setting, steps, times, changes in parts[part]:
            yield _variant(data, part, "scafflix", setting, steps, times, rate, changes)
        if part == "alpha":
            for alpha, steps in product(ALPHAS, (1, n)):
                options: Options = {"alpha": alpha, "tau": steps, "gamma": rate / alpha**2}
                yield _variant(data, part, "flix", f"alpha={alpha}", steps, 1, rate, {"method": options})


def _variant(
    data: str, part: str, method: str, setting: str, steps: int, times: int, rate: float, changes: Tables
) -> Variant:
    at = {"data": data, "part": part, "method": method, "setting": setting, "steps": str(steps)}
    at |= {"rounds": _times(times), "rate": f"{rate:g}"}
    as_published = part == "methods" and times == 1 and (steps == 1) == (method == "flix")
    return Variant(at, _recipe(data), changes, "accuracy" if as_published else "nothing", times=times)


def _times(times: int) -> str:
    return "T" if times == 1 else f"{times}T"


def counted(rows: Sequence[Row]) -> Table:
    """Return a table with a line for each method and setting, at the rate with the best validation score."""
    chosen = best(rows)
    lines = []
    for row in chosen:
        at, measured = row.at, row.measured
        gradients = "0" if at["rounds"] == "0" else _times(int(at["steps"]) * int(at["rounds"][:-1] or 1))
        lines.append(
            [
                *(at[axis] for axis in ("data", "part", "method", "setting")),
                *(at["rounds"], gradients, at["rate"]),
                text(measured and measured.validation),
                row.told(text(measured and measured.figure)),
                DASH if row.published is None else f"{row.published.mean:.2f}",
            ]
        )
    headings = ["data", "part", "method", "setting", "aggregations", "local gradients", "rate"]
    return Table(
        [*headings, "validation", "test", "published"],
        lines,
        notes=[*NOTES, *claims(chosen), *remarks(rows)],
    )


NOTES = (
    "Accuracy in percent of the models of all existing users as they are: mean over clients ± standard error. T is the "
    "number of rounds of the recipe. Aggregations and local gradients are multiples of T; local gradients are the "
    "expected number of a client that takes part in every round. Each method is shown at the rate with the best "
    "validation accuracy. Published figures are over all test examples together, and those of Scafflix count 1/p "
    "aggregations as one round.",
)


def claims(chosen: Sequence[Row]) -> list[str]:
    """Compare the test accuracy of Scafflix with the other methods, for each data set."""
    told = []
    for data in dict.fromkeys(row.at["data"] for row in chosen):
        of = {
            (row.at["method"], row.at["steps"] == "1", row.at["rounds"]): row.measured.figure
            for row in chosen
            if (row.at["data"], row.at["part"]) == (data, "methods") and row.measured and row.measured.figure
        }
        mine = of.pop(("scafflix", False, "T"), None)
        if mine is None:
            continue
        names = {
            ("flix", True, "T"): "FLIX at equal aggregations",
            ("flix", False, "T"): "FLIX at equal aggregations and gradients",
            ("fedavg", False, "T"): "FedAvg",
            ("scaffnew", False, "T"): "Scaffnew",
            ("flix", False, "0"): "the local optima alone",
        }
        parts = [
            f"{names.get(place, 'FLIX at equal local gradients')} {_difference(mine, figure)}"
            for place, figure in of.items()
        ]
        told.append(f"{data}, Scafflix minus the others in percentage points: {'; '.join(parts)}.")
    return told


def _difference(mine: Percentage, other: Percentage) -> str:
    """Return the difference in percentage points. The error assumes independent clients, so it is rather too large."""
    return f"{mine.mean - other.mean:+.2f} ± {math.hypot(mine.stderr or 0.0, other.stderr or 0.0):.2f}"
