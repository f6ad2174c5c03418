"""An experiment of three cells, one of which diverges."""

from pathlib import Path

from coterie.lab.papers.comparison import cost
from coterie.lab.papers.experiment import Experiment, Variant

RECIPE = str(Path(__file__).with_name("tiny.toml"))


class Tiny(Experiment):
    """Three methods on digits."""

    def variants(self):
        for method in ("pflego", "fedavg", "fedper"):
            yield Variant({"data": "digits", "method": method}, RECIPE)


class Timed(Experiment):
    """The same, timed."""

    def variants(self):
        for method in ("pflego", "fedavg"):
            yield Variant({"method": method}, RECIPE, {"run": {"rounds": 3, "eval_last": 1}}, published="seconds")

    def table(self, rows):
        return cost(rows, reference="pflego")


class Mixed(Experiment):
    """Two methods, one of which has a head over all classes."""

    def variants(self):
        for method, labels in (("pflego", "local"), ("fedavg", "global")):
            yield Variant({"method": method}, RECIPE, {"model": {"labels": labels}}, published="nothing")
