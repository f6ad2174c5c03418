"""Tables and figures of FedDecay: "Balancing Model Performance and Rapid Personalization in Federated Learning with
Learning Rate Scheduling" (under review). All methods use the same grid, and results have errors over seeds.

Where the authors' code differs from the paper, the recipes follow the paper. Rates decay at every step, by equation 7.
Recipes whose names end in -epochs decay them by epoch, because Tables 8 to 10 call the steps "Local Epochs". `Tuned`
and `WritersEpochs` compare the two. FOMAML is FOMAML. FedBN uses its settings. Fine-tuning is one epoch at the method's
own rate. All splits of a client have the same mix of classes. No run is stopped early because it was slow at first. See
docs/results/feddecay.md.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, Literal

from coterie.lab.papers.comparison import Row
from coterie.lab.papers.cost_bars import cost_bars
from coterie.lab.papers.experiment import Experiment, Variant
from coterie.lab.papers.sheet import PublishedUsers, Sheet
from coterie.lab.papers.user_tables import over_users, validated
from coterie.measure.protocols import ADAPTED, AFTER, Protocol
from coterie.recipe import Tables, load
from coterie.report.panels import Drawing, Line, Panel, look
from coterie.report.tables import Table

PUBMED, WRITERS = "feddecay/pubmed", "feddecay/writers"
RATES = (0.05, 0.15, 0.5)
"""Learning rates that every method chooses from."""
RATE = {"per-fedavg": ("alpha", "beta"), "pfedme": ("beta", "eta"), "ditto": ("eta", "beta")}
"""Names of the learning rates of a method. Other methods call it "eta"."""
OWN: Mapping[str, tuple[str, Sequence[float]]] = {
    "feddecay": ("beta", (0.2, 0.6)),
    "pfedme": ("lam", (0.5, 2.0)),
    "ditto": ("lam", (0.1, 0.5)),
}
"""Further parameter of a method, and the values that it chooses from."""
BETAS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Values of beta in Table 5."""
FIRST_SEED = 100
"""First seed of the runs that settings are chosen with. Reported runs use seeds from 0."""
TABLE_5: Mapping[str, Mapping[float, tuple[float, float]]] = {
    "femnist": {
        0.0: (88.51, 90.55),
        0.2: (89.86, 91.52),
        0.4: (89.74, 90.77),
        0.6: (89.76, 90.93),
        1.0: (87.91, 89.78),
    },
    "sst2": {
        0.0: (73.60, 80.30),
        0.2: (67.01, 59.02),
        0.4: (69.42, 67.26),
        0.6: (78.15, 81.01),
        0.8: (74.64, 76.14),
        1.0: (76.54, 76.80),
    },
    "pubmed": {
        0.0: (86.70, 79.14),
        0.2: (85.67, 79.68),
        0.4: (87.22, 80.39),
        0.6: (86.65, 79.86),
        0.8: (86.59, 79.32),
        1.0: (86.29, 79.50),
    },
}
"""Published figures of Table 5 for existing and new users, by data set and beta. The paper has none for 0.8 on FEMNIST,
where Hyperband stopped the run."""
SWEPT = {"femnist": "feddecay/femnist-epochs", "sst2": "feddecay/sst2-epochs", "pubmed": PUBMED}
"""Recipe of each data set of Table 5."""
TUNED_LINEAR = {
    "femnist": {"eta": 0.1, "beta": 0.4},
    "sst2": {"eta": 0.05, "beta": 0.6},
    "pubmed": {"eta": 0.5, "beta": 0.6},
}
"""Settings of linear decay in Tables 8 to 10. The authors write 1 - beta there."""


class Comparison(Experiment):
    """All methods of one recipe."""

    recipe: str

    def variants(self) -> Iterator[Variant]:
        for method in Sheet.of(load(self.recipe)).methods:
            yield Variant({"method": method}, self.recipe)

    def table(self, rows: Sequence[Row]) -> Table:
        return over_users(rows, {"method": "feddecay"})

    def figure(self, rows: Sequence[Row]) -> Sequence[Sequence[Drawing]]:
        return [*super().figure(rows), *cost_bars(rows, self.recipe.partition("/")[2])]


class PubMed(Comparison):
    """FedDecay, Tables 3, 4 and 7 and Figure 1 on PubMed: accuracy of existing and new users, and cost."""

    recipe = PUBMED


class Writers(Comparison):
    """FedDecay, Tables 3 and 4 on a smaller data set: MNIST by writer instead of FEMNIST."""

    recipe = WRITERS


class FEMNIST(Comparison):
    """FedDecay, Tables 3, 4 and 6 and Figure 1 on FEMNIST (needs the files of LEAF)."""

    recipe = "feddecay/femnist"


class SST2(Comparison):
    """FedDecay, Tables 3 and 4 on a part of SST-2, with a randomly initialized BERT-Tiny."""

    recipe = "feddecay/sst2"


class Grid(Experiment):
    """All settings of all methods of one recipe. There is no figure, because test examples are not used to choose."""

    along = ()
    recipe: str

    def variants(self) -> Iterator[Variant]:
        for method in Sheet.of(load(self.recipe)).methods:
            own, values = OWN.get(method, ("", (0.0,)))
            for rate, value in product(RATES, values):
                options: dict[str, Any] = dict.fromkeys(RATE.get(method, ("eta",)), rate)
                at = {"method": method, "rate": str(rate), "own": f"{own}{value}" if own else "none"}
                changes: Tables = {"method": options | ({own: value} if own else {}), "run": {"seed": FIRST_SEED}}
                yield Variant(at, self.recipe, changes, published="nothing")

    def table(self, rows: Sequence[Row]) -> Table:
        return validated(rows)


class PubMedGrid(Grid):
    """FedDecay, Table 10: settings with the best validation score on PubMed, with other seeds."""

    recipe = PUBMED


class WritersGrid(Grid):
    """FedDecay, Table 8 on a smaller data set: settings with the best validation score on MNIST by writer."""

    recipe = WRITERS


class Beta(Experiment):
    """FedDecay, Table 5 and Figure 2: from FedSGD to FedAvg with equal clients, for two decay schedules."""

    def variants(self) -> Iterator[Variant]:
        for data, decay, beta in product(("pubmed", "femnist", "sst2"), ("exponential", "linear"), BETAS):
            if decay == "linear" and beta in (0.0, 1.0):  # the same as exponential
                continue
            at = {"data": data, "decay": decay, "beta": str(beta), "method": "feddecay"}
            users = _users(*TABLE_5[data].get(beta, ())) if decay == "exponential" else {}
            yield Variant(at, SWEPT[data], {"method": {"decay": decay, "beta": beta}}, "nothing", users)

    def table(self, rows: Sequence[Row]) -> Table:
        return over_users(rows, {"decay": "exponential", "beta": "1.0"})

    def figure(self, rows: Sequence[Row]) -> list[list[Panel]]:
        by_data: dict[str, list[Row]] = {}
        for row in rows:
            if row.each(ADAPTED.name):
                by_data.setdefault(row.at["data"], []).append(row)
        return [[_by_beta(data, each, of) for of in (ADAPTED, AFTER)] for data, each in by_data.items()]


def _by_beta(data: str, rows: Sequence[Row], protocol: Protocol) -> Panel:
    """Return the accuracy of the picked rounds against beta, for each decay. Both meet FedSGD at 0 and FedAvg at 1."""
    lines = []
    for n, decay in enumerate(("exponential", "linear")):
        points = sorted(
            (float(row.at["beta"]), statistics.fmean(each.values()))
            for row in rows
            if row.at["decay"] == decay or row.at["beta"] in ("0.0", "1.0")
            if (each := row.each(protocol.name))
        )
        lines.append(Line(decay, [beta for beta, _ in points], [mean for _, mean in points], *look(n)))
    caption = "At the round with the best validation score, mean over seeds."
    return Panel(f"{data}, {protocol.title}", "accuracy (%)", lines, caption, "beta", logarithmic=False)


def _users(*figures: float) -> PublishedUsers:
    return {"existing": [figures[0]], "new": [figures[1]]} if figures else {}


class Tuned(Experiment):
    """FedDecay, Tables 8 to 10: all methods with the published settings, and FedDecay with K in epochs and in steps."""

    along = ("method", "decay", "counts")

    def variants(self) -> Iterator[Variant]:
        for data in SWEPT:
            recipe = f"feddecay/{data}-epochs"
            for method in Sheet.of(load(recipe)).methods:
                at = {"data": data, "method": method, "decay": "none", "counts": "none"}
                if method != "feddecay":
                    yield Variant(at, recipe)
                    continue
                units = ("step",) if data == "pubmed" else ("epoch", "step")  # an epoch is one step on PubMed
                for decay, unit in product(("exponential", "linear"), units):
                    own: dict[str, Any] = {"unit": unit, "decay": decay} | (
                        TUNED_LINEAR[data] if decay == "linear" else {}
                    )
                    published: Literal["accuracy", "nothing"] = "accuracy" if decay == "exponential" else "nothing"
                    yield Variant({**at, "decay": decay, "counts": unit}, recipe, {"method": own}, published)

    def table(self, rows: Sequence[Row]) -> Table:
        return over_users(rows, {"method": "fedavg"})

    def figure(self, rows: Sequence[Row]) -> Sequence[Sequence[Drawing]]:
        return [*super().figure(rows), *cost_bars(rows)]


class Weights(Experiment):
    """FedDecay on PubMed with two values of beta, against FedAvg with clients weighted equally and by size."""

    along = ("method", "weights", "beta")

    def variants(self) -> Iterator[Variant]:
        for users in ("sizes", "equal"):
            at = {"method": "fedavg", "weights": users, "beta": "1.0"}
            yield Variant(at, PUBMED, {"method": {"users": users}}, "nothing")
        for beta in (0.2, 0.8):
            at = {"method": "feddecay", "weights": "equal", "beta": str(beta)}
            yield Variant(at, PUBMED, {"method": {"beta": beta}}, "nothing")

    def table(self, rows: Sequence[Row]) -> Table:
        return over_users(rows, {"method": "fedavg", "weights": "equal"})


class WritersEpochs(Experiment):
    """FedDecay on MNIST by writer, decayed per step and per epoch, compared with FedAvg."""

    along = ("method", "unit", "rate", "beta")

    def variants(self) -> Iterator[Variant]:
        yield Variant({"method": "fedavg", "unit": "none", "rate": "0.5", "beta": "1.0"}, WRITERS)
        for unit, rate, beta in (
            ("step", 0.15, 0.6),
            ("step", 0.5, 0.8),
            ("epoch", 0.15, 0.6),
            ("epoch", 0.15, 0.8),
            ("epoch", 0.5, 0.6),
            ("epoch", 0.5, 0.8),
        ):
            at = {"method": "feddecay", "unit": unit, "rate": str(rate), "beta": str(beta)}
            yield Variant(at, WRITERS, {"method": {"unit": unit, "eta": rate, "beta": beta}})

    def table(self, rows: Sequence[Row]) -> Table:
        return over_users(rows, {"method": "fedavg"})
