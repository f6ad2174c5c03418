"""Convex experiments of Scafflix (section 3.1 and Appendix E), compared with the exact optimum.

K. Yi, L. Condat, P. Richtárik, "Explicit Personalization and Local Training: Double Communication Acceleration in
Federated Learning", TMLR.

The problem is logistic regression with mu = 0.1 in float64, see `mixtures`. GD is FLIX with one exact step per round.
Where the paper and its code use different step sizes, Theorem 4 decides: 1/L_i with the largest eigenvalue, and
p = sqrt(min mu/L_i).
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
import torch

from coterie import recipe as recipes
from coterie.clients.simulated import Simulated
from coterie.core.steps.convex import Search, minimum
from coterie.core.tree import Tree, pick, under, within
from coterie.data.examples import Examples
from coterie.data.federation import Federation
from coterie.lab.endless import endless
from coterie.lab.papers import scafflix_figures as figures
from coterie.lab.papers.laboratory import Laboratory, Measurement, Result
from coterie.lab.papers.mixtures import Logistic, Mixtures, Vector, logistics, one_vector
from coterie.models.module import Own
from coterie.prepare import Prepared, prepare
from coterie.recipe import Recipe, Tables
from coterie.report.panels import Panel
from coterie.report.tables import Table

RECIPE = "scafflix/mushrooms"
DATA = ("mushrooms", "a6a", "w6a")
ALPHAS = ("1", "0.1", "0.01", "0.001", "0.0001")
STEP_ALPHAS = ("1", "0.1", "0.01")
TOLERANCES = ("1e-1", "1e-2", "1e-3", "1e-4", "1e-5", "1e-6")
LOCAL_STEPS = ("0", "1", "5", "200", "1000")
FAR = 100.0
"""Value of all elements of the starting point of inexact searches for local optima."""
MOST = 100_000
"""Largest number of steps of such a search, as in the authors' code."""
LABELS, FEATURES = "label-ratio", "feature-clusters"


@dataclass
class Dealt:
    """Clients of one data set and split, with their exact optima."""

    federation: Federation
    problems: list[Logistic]
    found: dict[Search, list[Tree]] = field(default_factory=dict)
    """Local optima that clients found, by the way of searching."""

    @cached_property
    def optima(self) -> Vector:
        """Exact local optima v_i*: (n, d)."""
        return np.stack([each.minimum() for each in self.problems])

    def least(self, alpha: float) -> float:
        """Return the minimum of the objective of FLIX."""
        exact = Mixtures(self.problems, alpha, self.optima)
        return exact.at(exact.minimum())[0]


@dataclass
class ScafflixConvex(Laboratory):
    """Scafflix, the convex experiments: Figures 1, 4, 5 and 9 to 13."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._base = recipes.load(RECIPE)
        self._held: tuple[Any, Dealt] | None = None
        if self.scale == "small" and "data" not in self.wanted:
            self.wanted = {**self.wanted, "data": ["mushrooms"]}

    def everything(self) -> list[Measurement]:
        return [each for data in DATA for each in self._of(data)]

    def _of(self, data: str) -> Iterator[Measurement]:
        for split, alpha in product(figures.SPLITS, ALPHAS):
            yield self._descent("convergence", data, split, "gd", alpha, "", {})
            yield from self._scafflix("convergence", data, split, alpha, "")
        for split, alpha, by in product((LABELS, FEATURES), STEP_ALPHAS, ("max", "mean")):
            yield from self._scafflix("steps", data, split, alpha, by)
        for alpha, (variant, search) in product(("0.1", "0.01"), _searches()):
            yield self._descent("inexact", data, LABELS, "scafflix", alpha, variant, search)
        many: Tables = {"partition": {"clients": 100}, "method": {"name": "gd", "mu": 0.2}}
        yield self._at(many, "iterations", data, LABELS, "gd", "", "")

    def _scafflix(self, what: str, data: str, split: str, alpha: str, variant: str) -> Iterator[Measurement]:
        for seed in range(self.seeds):
            yield self._descent(what, data, split, "scafflix", alpha, variant, {}, seed)

    def _descent(
        self, what: str, data: str, split: str, method: str, alpha: str, variant: str, options: Any, seed: int = 0
    ) -> Measurement:
        """Return the measurement of a curve. `options` are settings of the method; `seed` is that of the coin."""
        name, coin = ("flix", {}) if method == "gd" else ("scafflix", {"p": "optimal"})
        exact = {"optimum_solver": "newton", "optimum_tolerance": 1e-13}
        own = {"name": name, "alpha": float(alpha), "gamma": "1/L", "mu": 0.2, **coin, **(options or exact)}
        rounds = 60 if what == "inexact" else 1000
        tables: Tables = {"method": own, "run": {"seed": seed, "rounds": rounds}}
        return self._at(tables, what, data, split, method, alpha, variant, str(seed))

    def _at(
        self, tables: Tables, what: str, data: str, split: str, method: str, alpha: str, variant: str, seed: str = ""
    ) -> Measurement:
        of_data: Tables = {"data": {"name": data}, "partition": {"name": split, "clients": 8, "new_users": 0.0}}
        tree = recipes.changed(recipes.changed(self._base, of_data), tables)
        values = (what, data, split, method, alpha, variant, seed)
        return Measurement(dict(zip(figures.AXES, values, strict=True)), recipes.read(tree, self.changes))

    def result(self, measurement: Measurement, should_stop: Callable[[], bool]) -> Result:
        if measurement.at["what"] == "iterations":
            return self._iterations(measurement.recipe, should_stop)
        return self._curve(measurement, should_stop)

    def _curve(self, measurement: Measurement, should_stop: Callable[[], bool]) -> Result:
        """Measure objective gap, squared norm of the gradient and local steps, at the start and after each round."""
        at, dealt = measurement.at, self._dealt(measurement.recipe)
        run = self._prepared(self._with_step(measurement, dealt), dealt)
        clients = range(len(dealt.problems))
        anchors = np.stack([_vector(within("optimum", run.clients.personal(i))) for i in clients])
        alpha = float(at["alpha"])
        mixtures, least = Mixtures(dealt.problems, alpha, anchors), dealt.least(alpha)
        gaps, norms, steps = [], [], [0]
        rounds = run.rounds.play()
        for done in range(measurement.recipe.run.rounds + 1):
            value, g = mixtures.at(_vector(run.rounds.shared))
            gaps.append(value - least)
            norms.append(float(g @ g))
            if at["what"] != "inexact" and gaps[-1] <= min(figures.GAP, figures.SHARE * gaps[0]):
                break
            if should_stop():
                raise KeyboardInterrupt
            if done < measurement.recipe.run.rounds:
                steps.append(steps[-1] + next(rounds).cost.body_backwards // len(clients))
        run.clients.close()
        return {"gap": _short(gaps), "gradient": _short(norms), "steps": steps}

    def _prepared(self, recipe: Recipe, dealt: Dealt) -> Prepared[Simulated]:
        """Prepare a run with local optima that are computed once for all curves of a split.

        The optima depend neither on alpha, nor on the method, nor on the coin.
        """
        method: Any = recipe.method
        how = Search.of(method)
        unsought = replace(method, optimum_solver="gd", optimum_epochs=0)
        run = self._ready(replace(recipe, method=unsought), dealt.federation)
        load, clients = run.clients.load, range(len(dealt.problems))
        task = load.work.task
        if how not in dealt.found:
            data = (load.data(i, "train", 0) for i in clients)
            sought = (minimum(task, task.initial, own, method.mu, how) for own in data)
            dealt.found[how] = [under("optimum", pick(best, task.params)) for best, _ in sought]
        for i in clients:
            run.clients.store[i] = {**run.clients.personal(i), **dealt.found[how][i]}
        return run

    def _with_step(self, measurement: Measurement, dealt: Dealt) -> Recipe:
        """Return the recipe with one step size for all clients if the measurement asks for it.

        It is 1 over the largest L_i, which theory allows, or 1 over the mean L_i, as in the authors' code.
        """
        recipe = measurement.recipe
        if measurement.at["what"] != "steps":
            return recipe
        L = [float(np.linalg.eigvalsh(f.hessian(np.zeros(f.A.shape[1])))[-1]) for f in dealt.problems]
        gamma = 1 / (2 * (max(L) if measurement.at["variant"] == "max" else np.mean(L)))
        own = {**recipe.as_dict()["method"], "gamma": float(gamma)}
        return Recipe.parse({**recipe.as_dict(), "method": own})

    def _iterations(self, recipe: Recipe, should_stop: Callable[[], bool]) -> Result:
        """Count the steps of gradient descent to each tolerance, for each client and each starting point."""
        load = self._ready(recipe, self._dealt(recipe).federation).clients.load
        task = load.work.task
        found: Result = {}
        for start in ("0", "100"):
            found[start] = {tolerance: [] for tolerance in TOLERANCES}
            for client in range(len(load.federation.ids)):
                if should_stop():
                    raise KeyboardInterrupt
                data = load.data(client, "train", 0)
                params, done = {name: float(start) * value for name, value in task.initial.items()}, 0
                for tolerance in TOLERANCES:
                    params, more = minimum(task, params, data, 0.2, Search("gd", "1/L", _norm(tolerance), MOST))
                    done += more
                    found[start][tolerance].append(done)
        return found

    def _ready(self, recipe: Recipe, federation: Federation) -> Prepared[Simulated]:
        """Prepare a run that starts from v = (1, ..., 1), as in the authors' code."""
        net = recipe.model.build(tuple(federation.x.shape[1:]), 2)
        with torch.no_grad():
            for value in net.parameters():
                value.copy_(torch.tensor([-0.5, 0.5]).reshape(2, *[1] * (value.ndim - 1)).expand_as(value))
        return prepare(endless(replace(recipe, model=Own(net=net, head_name=recipe.model.head))), federation)

    def _dealt(self, recipe: Recipe) -> Dealt:
        """Return the clients of a recipe, split with seed 0. Consecutive measurements share them."""
        tree = recipe.as_dict()
        key = tree["data"], tree["partition"]
        if self._held is None or self._held[0] != key:
            federation = replace(recipe, run=replace(recipe.run, seed=0)).deal(whole_file(recipe))
            self._held = key, Dealt(federation, logistics(federation, 0.1))
        return self._held[1]

    def tables(self, results: Mapping[str, Result]) -> list[Table]:
        return figures.tables(self._placed(results))

    def panels(self, results: Mapping[str, Result]) -> list[list[Panel]]:
        return figures.panels(self._placed(results))

    def facts(self) -> list[str]:
        return figures.facts(self.seeds)

    def _placed(self, results: Mapping[str, Result]) -> list[figures.PlacedResult]:
        return [figures.PlacedResult(each.at, results[each.name]) for each in self.chosen if each.name in results]


def whole_file(recipe: Recipe) -> Examples:
    """Load all rows of the (training) file of a data set, in the order of the file, as in the authors' code."""
    path, features = recipe.dataset().files()[0], recipe.dataset().load().x_train.shape[1]
    file = {"name": "libsvm", "path": str(path.parent), "file": path.name, "test_file": path.name, "features": features}
    return Recipe.parse({"data": file}).dataset().load()


def _searches() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield settings for inexact searches for local optima, from a distant starting point."""
    common = {"optimum_solver": "gd", "optimum_rate": "1/L", "optimum_start": FAR}
    for tolerance in TOLERANCES:
        yield f"eps {tolerance}", {**common, "optimum_tolerance": _norm(tolerance), "optimum_epochs": MOST}
    for steps in LOCAL_STEPS:
        yield f"{steps} steps", {**common, "optimum_tolerance": 0.0, "optimum_epochs": int(steps)}


def _norm(tolerance: str) -> float:
    """Return the norm of the gradient over two outputs at which the gradient over v has the given norm."""
    return math.sqrt(2) * float(tolerance)


def _vector(tree: Mapping[str, Any]) -> Vector:
    return one_vector(tree["head.weight"], tree["head.bias"])


def _short(values: Sequence[float]) -> list[float]:
    return [float(f"{value:.5g}") for value in values]
