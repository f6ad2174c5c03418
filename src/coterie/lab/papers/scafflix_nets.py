"""K. Yi, L. Condat, P. Richtárik, "Explicit Personalization and Local Training: Double Communication Acceleration in
Federated Learning", TMLR: the neural nets of sections 3.2 to 3.4, with every aggregation counted.

In the authors' code for nets an aggregation follows every step, whatever p is, control variates begin at 0 in each
round, and what is plotted as a round of Scafflix is 1/p aggregations. Here Scafflix is Algorithm 1, and a round is one
aggregation. The other methods are compared with it at as many aggregations, and at as many local gradients. What the
paper plots as Scafflix at round T is nearest to FLIX with one local step a round after T/p rounds.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from coterie.lab.papers.comparison import Row, text
from coterie.lab.papers.experiment import Experiment, Variant
from coterie.lab.papers.measured import Percentage
from coterie.lab.papers.rates import best, remarks
from coterie.recipe import Tables, load
from coterie.report.tables import Table
from coterie.report.units import DASH

RATES: Mapping[str, Sequence[float]] = {
    "mnist-writers": (0.03, 0.1, 0.3, 1.0),
    "fashion-mnist": (0.03, 0.1, 0.3, 1.0),
    "shakespeare": (0.3, 1.0, 3.0),
    "femnist": (0.03, 0.1, 0.3, 1.0),
}
"""For each data set what all methods choose from: how far a step moves a client's model, in units of the gradient."""
OF_OTHERS = "femnist"
"""Users must make it themselves; it is not run unless asked for."""
ALPHAS = (0.1, 0.3, 0.5, 0.7, 0.9)
CLIENTS = (1, 5, 10, 20)
COINS = ((0.1, 1), (0.2, 1), (0.2, 2), (0.5, 1), (0.5, 5))
"""p, and times as many rounds: at equal aggregations, and at the local gradients of the first."""
ABLATIONS = {
    "mnist-writers": ("alpha", "p", "clients"),
    "shakespeare": ("alpha",),
    "femnist": ("alpha", "p", "clients"),
}
Options = dict[str, Any]


class Nets(Experiment):
    """Scafflix, neural nets: Table 1 and Figures 2, 3, 6 and 7, at equal aggregations and at equal local gradients"""

    def variants(self) -> Iterator[Variant]:
        for data in RATES:
            own = load(_recipe(data))["method"]
            yield from _methods(data, own)
            yield from _ablations(data, own)

    def choose(self, name: str, wanted: Mapping[str, Sequence[str]]) -> list[Variant]:
        return [each for each in super().choose(name, wanted) if "data" in wanted or each.at["data"] != OF_OTHERS]

    def table(self, rows: Sequence[Row]) -> Table:
        return counted(rows)


def _recipe(data: str) -> str:
    return f"scafflix/{data}"


def _methods(data: str, own: Options) -> Iterator[Variant]:
    """Each with one local step a round or n, and once after n times as many rounds; and what clients have to begin
    with, their own optima."""
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


def _ablations(data: str, own: Options) -> Iterator[Variant]:
    """Of Scafflix, at the recipe's rate."""
    n, rate = round(1 / own["p"]), own["gamma"]
    parts: dict[str, list[tuple[str, int, int, Tables]]] = {
        "alpha": [(f"alpha={alpha}", n, 1, {"method": {"alpha": alpha}}) for alpha in ALPHAS],
        "p": [(f"p={p}", round(1 / p), times, {"method": {"p": p}}) for p, times in COINS],
        "clients": [(f"clients={r}", n, 1, {"run": {"clients_per_round": r}}) for r in CLIENTS],
    }
    for part in ABLATIONS.get(data, ()):
        for setting, steps, times, changes in parts[part]:
            yield _variant(data, part, "scafflix", setting, steps, times, rate, changes)


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
    """A line for each method and setting, at the rate that validation chooses, with what it costs."""
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
    "Accuracy in percent of all clients' models as they are, mean over clients ± standard error over them. T is the "
    "recipe's number of rounds; aggregations and local gradients (of one client that is always there, expected) are "
    "multiples of it. Among a method's rates the one with the best validation accuracy is shown. Published figures "
    "are over all test examples together, and those of Scafflix count 1/p aggregations as one round.",
)


def claims(chosen: Sequence[Row]) -> list[str]:
    """What of the paper's comparison holds, data set by data set: test accuracy of Scafflix less that of another."""
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
            f"{_difference(mine, figure)} to {names.get(place, 'FLIX at equal local gradients')}"
            for place, figure in of.items()
        ]
        told.append(f"{data}: Scafflix is {'; '.join(parts)}.")
    return told


def _difference(mine: Percentage, other: Percentage) -> str:
    """In points; the error is that of independent clients, so rather too large."""
    return f"{mine.mean - other.mean:+.2f} ± {math.hypot(mine.stderr, other.stderr):.2f}"
