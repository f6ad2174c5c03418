"""Tables and figures of PFLEGO, and three further experiments.

S. Nikoloutsopoulos, I. Koutsopoulos, M. K. Titsias, "Personalized Federated Learning with Exact Stochastic Gradient
Descent", arXiv:2202.09848.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from coterie.lab.papers.comparison import Row, accuracy, cost, interval_notes
from coterie.lab.papers.experiment import Experiment, Variant
from coterie.lab.papers.figure import ACCURACY, LOSS, TRAIN_ACCURACY, curve_panels
from coterie.lab.papers.measured import Percentage
from coterie.lab.papers.rates import best, remarks
from coterie.recipe import Tables, load
from coterie.report.panels import Panel
from coterie.report.tables import Table

DEGREES = ("high", "medium", "no")
BASELINES = ("fedper", "fedavg", "fedprox", "ditto", "fedrep", "fedbabu")
METHODS = (*BASELINES, "pflego", "fedrecon")
RATES = {"fedavg": ("eta",), "fedprox": ("eta",), "ditto": ("eta", "beta")}
"""Names of the learning rates of a client. Other methods call it "beta"."""
OMNIGLOT = "pflego/omniglot"
CONFERENCE = {
    ("mnist", "high"): (98.43, 0.21),
    ("mnist", "medium"): (94.22, 0.43),
    ("mnist", "no"): (90.68, 0.17),
    ("cifar-10", "no"): (58.98, 0.81),
    ("emnist", "high"): (98.49, 0.43),
    ("emnist", "medium"): (74.43, 0.40),
    ("emnist", "no"): (55.42, 0.19),
}
"""Figures of PFLEGO in Table 1 of the conference version (Adaptive and Learning Agents Workshop 2023), by data set and
degree. The other five, and those of FedPer and FedAvg, are the same in both versions."""


def _rates(method: str, rate: float) -> dict[str, Any]:
    return dict.fromkeys(RATES.get(method, ("beta",)), rate)


class Table1(Experiment):
    """PFLEGO, Table 1: test accuracy at three degrees of personalization, with FedRecon added."""

    def variants(self) -> Iterator[Variant]:
        for data, degree, method in product(("mnist", "fashion-mnist", "emnist", "cifar-10"), DEGREES, METHODS):
            yield Variant({"data": data, "degree": degree, "method": method}, f"pflego/{data}-{degree}")

    def table(self, rows: Sequence[Row]) -> Table:
        """Return the table, with a note on the figures that the conference version prints differently."""
        table = accuracy(rows)
        found = {(row.at["data"], row.at["degree"]): row.published for row in rows if row.at["method"] == "pflego"}
        others = [
            f"{data} {degree} {Percentage(*CONFERENCE[data, degree])} (here {published})"
            for (data, degree), published in found.items()
            if published is not None and (data, degree) in CONFERENCE
        ]
        told = f"Published for pflego in the conference version of 2023: {', '.join(others)}."
        return replace(table, notes=[*table.notes, *[told] * bool(others), *interval_notes(rows)])


class Table2(Experiment):
    """PFLEGO, Table 2 and Figure 6: accuracy and loss on Omniglot.

    The figure extends to round 5000, like Figure 7.
    """

    def variants(self) -> Iterator[Variant]:
        for method in METHODS:
            yield Variant({"method": method}, OMNIGLOT)

    def table(self, rows: Sequence[Row]) -> Table:
        table = accuracy(rows)
        return replace(table, notes=[*table.notes, *interval_notes(rows)])

    def figure(self, rows: Sequence[Row]) -> list[list[Panel]]:
        return curve_panels(rows, self.along, (ACCURACY, LOSS, TRAIN_ACCURACY))


class Table3(Experiment):
    """PFLEGO, Table 3: seconds per round on Omniglot."""

    along = ()

    def variants(self) -> Iterator[Variant]:
        few: Tables = {"run": {"rounds": 4, "eval_last": 1}, "eval": {"adapt_steps": 0, "clients": 1}}
        for method in METHODS:
            yield Variant({"method": method}, OMNIGLOT, few, published="seconds")

    def table(self, rows: Sequence[Row]) -> Table:
        return cost(rows, reference="pflego")


class Figures2To5(Experiment):
    """PFLEGO, Figures 2 to 5: PFLEGO, FedAvg and FedPer at three degrees of personalization, evaluated every 5 rounds.

    They are cells of Table 1. Figure 2 is MNIST, Figure 3 Fashion-MNIST, Figure 4 CIFAR-10 and Figure 5 EMNIST.
    """

    def variants(self) -> Iterator[Variant]:
        often: Tables = {"run": {"eval_every": 5}}
        for data, degree, method in product(
            ("mnist", "fashion-mnist", "cifar-10", "emnist"), DEGREES, ("pflego", "fedavg", "fedper")
        ):
            at = {"data": data, "degree": degree, "method": method}
            yield Variant(at, f"pflego/{data}-{degree}", often)


class Figure7(Experiment):
    """PFLEGO, Figure 7: comparison with FedRecon for several numbers of local steps, with 4 to 28 clients per round.

    The figure extends to round 5000. The recipe ends at round 1000, as in Table 2; use --set run.rounds=5000 for all
    rounds.
    """

    def variants(self) -> Iterator[Variant]:
        run = {"participation": "uniform", "clients_range": [4, 28]}
        for tau, method in product((5, 10, 25, 50, 75, 100), ("pflego", "fedrecon")):
            changes: Tables = {"method": {"tau": tau, "beta": 0.007, "rho": 0.001}, "run": run}
            yield Variant({"tau": str(tau), "method": method}, OMNIGLOT, changes, published="nothing")


class Figure8(Experiment):
    """PFLEGO, Figure 8: several numbers of clients per round, at high personalization."""

    def variants(self) -> Iterator[Variant]:
        for data, r, method in product(
            ("cifar-10", "fashion-mnist"), (20, 40, 60, 100), ("pflego", "fedavg", "fedper")
        ):
            rates = _rates(method, 0.001) | ({"rho": 0.001} if method == "pflego" else {})
            changes = {"method": rates, "run": {"clients_per_round": r}}
            yield Variant(
                {"data": data, "r": str(r), "method": method}, f"pflego/{data}-high", changes, published="nothing"
            )


class Figure9(Experiment):
    """PFLEGO, Figure 9: learning rates of the client and of the server.

    The paper does not list the values. These are the grid of the server in Appendix A.3 and, from the grid of the
    client, its two ends, the value of Table 7 and one value in between. The figure extends to round 5000, like
    Figure 7.
    """

    along = ("beta",)

    def variants(self) -> Iterator[Variant]:
        for rho, beta in product((0.001, 0.002, 0.003), (0.001, 0.009, 0.03, 0.1341)):
            at = {"rho": str(rho), "beta": str(beta), "method": "pflego"}
            yield Variant(at, OMNIGLOT, {"method": {"rho": rho, "beta": beta}}, published="nothing")


class Averaging(Experiment):
    """PFLEGO, benefit of exactness: aggregation of gradients compared with averages of weights, at the same rate.

    Averaging weights after one step on the body is the same as one step along the averaged gradient. Three differences
    remain. The weights of the average sum to one, so they are unbiased only if all clients have the same size. The
    step of the head is scaled by alpha_i (eq. 5), which is small. And PFLEGO uses Adam.
    """

    along = ("aggregation", "method")

    def variants(self) -> Iterator[Variant]:
        for data, degree in product(("mnist", "fashion-mnist"), DEGREES):
            recipe = f"pflego/{data}-{degree}"
            beta = load(recipe)["method"]["beta"]
            plain = {"beta": beta, "momentum": 0.0}
            at = {"data": data, "degree": degree}
            yield Variant({**at, "aggregation": "gradients-adam", "method": "pflego"}, recipe)
            for aggregation, method, options in (
                ("gradients-sgd", "pflego", {"server": "sgd", "rho": beta, "head_step": "exact"}),
                ("weights-1-step", "fedrep", {**plain, "body_steps": 1}),
                ("weights-5-steps", "fedrep", {**plain, "body_steps": 5}),
            ):
                where = {**at, "aggregation": aggregation, "method": method}
                yield Variant(where, recipe, {"method": options}, published="nothing")


class OneClass(Experiment):
    """PFLEGO with one class per client (K = 1), where all heads have all classes.

    With its own class only, a client would have nothing to distinguish. A client is tested on its own class too, so a
    personal head that always answers with this class is right. The experiment shows how well a shared head serves such
    clients (`as is` of FedAvg and similar methods). It says nothing about personal heads.
    """

    def variants(self) -> Iterator[Variant]:
        changes: Tables = {"partition": {"classes_per_client": 1}, "model": {"labels": "global"}}
        for data, method in product(("mnist", "fashion-mnist"), METHODS):
            yield Variant({"data": data, "method": method}, f"pflego/{data}-high", changes, published="nothing")


class Fair(Experiment):
    """PFLEGO, Table 1 with the same grid of learning rates for all methods, chosen by validation.

    The grid of the baselines in the paper ends at 0.007. This grid extends from the smallest to the largest rate of
    PFLEGO in Table 6, in steps of about a factor of three. A tenth of the training examples is used for validation, so
    no published figure belongs to these runs.
    """

    def variants(self) -> Iterator[Variant]:
        grid = (0.002, 0.007, 0.0189, 0.06, 0.189)
        for data, degree, method, rate in product(("mnist", "fashion-mnist"), DEGREES, METHODS, grid):
            changes = {"method": _rates(method, rate), "partition": {"validation": 0.1}}
            at = {"data": data, "degree": degree, "method": method, "rate": str(rate)}
            yield Variant(at, f"pflego/{data}-{degree}", changes, published="nothing")

    def table(self, rows: Sequence[Row]) -> Table:
        chosen = accuracy(best(rows))
        return replace(chosen, notes=[*chosen.notes, *remarks(rows)])

    def figure(self, rows: Sequence[Row]) -> list[list[Panel]]:
        return curve_panels(best(rows), ("method", "rate"))
