"""S. Nikoloutsopoulos, I. Koutsopoulos, M. K. Titsias, "Personalized Federated Learning with Exact Stochastic Gradient
Descent", arXiv:2202.09848: its tables and figures, and three experiments that it lacks.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from coterie.lab.papers.comparison import Row, accuracy, cost
from coterie.lab.papers.experiment import Experiment, Variant
from coterie.lab.papers.rates import best, remarks
from coterie.recipe import Tables, load
from coterie.report.tables import Table

DEGREES = ("high", "medium", "no")
BASELINES = ("fedper", "fedavg", "fedprox", "ditto", "fedrep", "fedbabu")
METHODS = (*BASELINES, "pflego", "fedrecon")
RATES = {"fedavg": ("eta",), "fedprox": ("eta",), "ditto": ("eta", "beta")}
"""What the client's rate is called; "beta", unless said here."""
OMNIGLOT = "pflego/omniglot"


def _rates(method: str, rate: float) -> dict[str, Any]:
    return dict.fromkeys(RATES.get(method, ("beta",)), rate)


class Table1(Experiment):
    """PFLEGO, Table 1: test accuracy at three degrees of personalization, and of FedRecon"""

    def variants(self) -> Iterator[Variant]:
        for data, degree, method in product(("mnist", "fashion-mnist", "emnist", "cifar-10"), DEGREES, METHODS):
            yield Variant({"data": data, "degree": degree, "method": method}, f"pflego/{data}-{degree}")


class Table2(Experiment):
    """PFLEGO, Table 2: test accuracy on Omniglot."""

    def variants(self) -> Iterator[Variant]:
        for method in METHODS:
            yield Variant({"method": method}, OMNIGLOT)


class Table3(Experiment):
    """PFLEGO, Table 3: seconds a round on Omniglot."""

    def variants(self) -> Iterator[Variant]:
        few: Tables = {"run": {"rounds": 4, "eval_last": 1}, "eval": {"adapt_steps": 0, "clients": 1}}
        for method in METHODS:
            yield Variant({"method": method}, OMNIGLOT, few, published="seconds")

    def table(self, rows: Sequence[Row]) -> Table:
        return cost(rows, reference="pflego")


class Figure7(Experiment):
    """PFLEGO, Figure 7: against FedRecon for several numbers of local steps, from 4 to 28 clients a round.

    The figure goes on to round 5000, the recipe to 1000 as in Table 2, unless --set run.rounds=5000; likewise Figure 9.
    """

    def variants(self) -> Iterator[Variant]:
        run = {"participation": "uniform", "clients_range": [4, 28]}
        for tau, method in product((5, 10, 25, 50, 75, 100), ("pflego", "fedrecon")):
            changes: Tables = {"method": {"tau": tau, "beta": 0.007, "rho": 0.001}, "run": run}
            yield Variant({"tau": str(tau), "method": method}, OMNIGLOT, changes, published="nothing")


class Figure8(Experiment):
    """PFLEGO, Figure 8: several numbers of clients a round, at high personalization."""

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
    """PFLEGO, Figure 9: rates of the client and of the server.

    The text does not name the values. These are the server's grid of Appendix A.3, and of the client's its two ends,
    the value of Table 7, and one between.
    """

    def variants(self) -> Iterator[Variant]:
        for rho, beta in product((0.001, 0.002, 0.003), (0.001, 0.009, 0.03, 0.1341)):
            at = {"rho": str(rho), "beta": str(beta), "method": "pflego"}
            yield Variant(at, OMNIGLOT, {"method": {"rho": rho, "beta": beta}}, published="nothing")


class Averaging(Experiment):
    """What exactness is worth: PFLEGO's aggregation of gradients beside averages of weights, at the same rate.

    The average of weights after one step on the body is a step along the averaged gradient. What is then left to differ
    are the weights in that average, which sum to one and so are unbiased only where clients are of one size, the head's
    part in the joint step, which is small (alpha_i, as in eq. 5), and Adam.
    """

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
    """One class a client, K = 1, all heads over all classes: over its own a client would have nothing to tell apart.

    A client is tested on its own class, too, so that a personal head that always names it is right. What can be learned
    here is what a shared head makes of such clients (`as is` of FedAvg and its kin), and nothing about personal ones.
    """

    def variants(self) -> Iterator[Variant]:
        changes: Tables = {"partition": {"classes_per_client": 1}, "model": {"labels": "global"}}
        for data, method in product(("mnist", "fashion-mnist"), METHODS):
            yield Variant({"data": data, "method": method}, f"pflego/{data}-high", changes, published="nothing")


class Fair(Experiment):
    """Table 1 with a grid of rates as wide for the baselines as for PFLEGO, chosen from by validation.

    The grid of the paper's baselines ends at 0.007. This one goes from the smallest to the largest of PFLEGO's rates in
    Table 6, each about three times the one before. What validation is done on is a tenth of the training examples, so
    no published figure is of these runs.
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
