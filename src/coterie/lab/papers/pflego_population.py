"""PFLEGO with clients that join and leave, that fail together, or that miss deadlines: open questions of the paper.

S. Nikoloutsopoulos, I. Koutsopoulos, M. K. Titsias, "Personalized Federated Learning with Exact Stochastic Gradient
Descent", arXiv:2202.09848, section 5.

A round's gradient is (I/r) Σ_i α_i g_i over the clients that answer. It is unbiased for objective (1) if every client
answers with probability r/I. With correction, r is the expected number of answers; without, the number of clients that
are asked.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from coterie import recipe as recipes
from coterie.lab.papers.laboratory import Laboratory, Measurement, Result
from coterie.lab.papers.users import seed_mean
from coterie.measure.evaluate import Scores, evaluate
from coterie.prepare import prepare
from coterie.recipe import Tables
from coterie.report.panels import Line, Panel, look
from coterie.report.tables import Table
from coterie.report.units import DASH
from coterie.server import population
from coterie.server.rounds import Rounds

RECIPE = "pflego/fashion-mnist-high"
SITUATIONS: Mapping[str, Mapping[str, Any]] = {
    "all answer": {},
    "join and leave": {"absent": 0.5, "join": 0.05, "leave": 0.05},
    "dropout": {"dropout": 0.5},
    "bursts": {"burst": 0.1, "burst_rounds": 5, "burst_dropout": 0.9},
    "deadline": {"late": 0.8},
    "deadline, never met": {"late": 1.0},
}
"""Settings of the section [population]. In the first two situations r is the number of answers in any case."""
SLOW: Mapping[str, Any] = {"slow": 0.3, "late": 0.0}
"""Slow clients, who are the same in all situations. Only the deadlines make a difference to them."""
SERVERS: Mapping[str, Mapping[str, Any]] = {
    "sgd": {"server": "sgd", "head_step": "exact", "rho": 0.1},
    "adam": {"server": "adam"},
}
"""Settings of the method. With "sgd" a round is one exact step of SGD, as in theory. "adam" is as in the tables."""
EVERY = 10
"""Number of rounds between the points of a curve."""
DRAWS = 20_000
"""Number of rounds that are drawn, without any training, to average the weight of each client."""


class Group(NamedTuple):
    """Accuracy of some clients after the last round, in percent."""

    as_is: float
    adapted: float


@dataclass
class Population(Laboratory):
    """PFLEGO, changing populations: clients that join and leave, fail together, or miss deadlines."""

    def everything(self) -> list[Measurement]:
        return [
            self._at(server, situation, correction, seed)
            for server, situation in product(SERVERS, SITUATIONS)
            for correction in (("with", "without") if list(SITUATIONS).index(situation) > 1 else ("",))
            for seed in range(self.seeds)
        ]

    def _at(self, server: str, situation: str, correction: str, seed: int) -> Measurement:
        rounds = 200 if self.scale == "full" else 100
        tables: Tables = {
            "method": dict(SERVERS[server]),
            "population": {**SLOW, **SITUATIONS[situation], "correct": correction != "without"},
            "run": {"rounds": rounds, "eval_every": rounds, "eval_last": 1, "seed": seed},
        }
        base = {key: value for key, value in recipes.load(RECIPE).items() if key != "experiment"}
        at = {"server": server, "situation": situation, "correction": correction, "seed": str(seed)}
        return Measurement(at, recipes.read(recipes.changed(base, tables), self.changes))

    def result(self, measurement: Measurement, should_stop: Callable[[], bool]) -> Result:
        """Train, and return the curve, the bias of the gradient at the end, and the accuracy of clients."""
        recipe = measurement.recipe
        run = prepare(recipe, recipe.federation())
        rounds, curve, answers = run.rounds, [_point(run.rounds, 0)], []
        for record in rounds.play():
            if should_stop():
                raise KeyboardInterrupt
            answers.append(len(record.cohort))
            if record.round % EVERY == 0:
                curve.append(_point(rounds, record.round))
        clients = population.Population(recipe.population, run.clients.ids, run.clients.is_new, recipe.run.seed)
        slow = set(clients.slow.nonzero()[0].tolist())
        final = evaluate(run.clients, rounds.shared, rounds.adapt_steps, rounds.existing.tolist(), []).test
        groups = {"all": set(rounds.existing.tolist()), "slow": slow}
        result = {
            "answers": statistics.fmean(answers),
            **_bias(rounds),
            **{name: _group(final.as_is, final.adapted, group) for name, group in groups.items()},
            "curve": {name: [point[n] for point in curve] for n, name in enumerate(("round", "accuracy", "loss"))},
        }
        run.clients.close()
        return result

    def tables(self, results: Mapping[str, Result]) -> list[Table]:
        lines = []
        for place, found in self._by_place(results).items():
            told = [_over(found, "answers", ".1f"), _over(found, "step", ".2f"), _over(found, "bias", ".2f")]
            told += [_over(found, "turn", ".2f")]
            for group in ("all", "slow"):
                told += [_over([each[group] for each in found], name, ".1f") for name in Group._fields]
            losses = [{"loss": each["curve"]["loss"][-1]} for each in found]
            lines.append([*(value or DASH for value in place), *told, _over(losses, "loss", ".3f")])
        headings = ["server", "situation", "correction", "answers", "step", "bias", "turn"]
        headings += ["as is", "adapted", "slow, as is", "slow, adapted", "loss"]
        title = (self.__doc__ or "").splitlines()[0].rstrip(".")
        return [Table(headings, lines, f"{title} ({self.scale} scale)", NOTES)]

    def panels(self, results: Mapping[str, Result]) -> list[list[Panel]]:
        rows = []
        for server in SERVERS:
            curves = {place[1:]: found for place, found in self._by_place(results).items() if place[0] == server}
            quantities = (("accuracy", "test accuracy (%)", False), ("loss", "training loss", True))
            rows.append(
                [
                    Panel(
                        f"server: {server}",
                        title,
                        [_line(*place, found, key) for place, found in curves.items()],
                        "Solid lines: with correction. Dashed lines: without.",
                        logarithmic=logarithmic,
                    )
                    for key, title, logarithmic in quantities
                ]
            )
        return rows

    def facts(self) -> list[str]:
        return [
            "Fashion-MNIST, 100 clients with two classes each",
            "20 clients asked per round",
        ]

    def _by_place(self, results: Mapping[str, Result]) -> dict[tuple[str, str, str], list[Result]]:
        """Return the results of all seeds by server, situation and correction."""
        found: dict[tuple[str, str, str], list[Result]] = {}
        for each in self.chosen:
            if each.name in results:
                at = each.at
                found.setdefault((at["server"], at["situation"], at["correction"]), []).append(results[each.name])
        return found


NOTES = (
    "Answers: mean number per round. Step: mean weight of the clients' gradients, relative to objective (1); 1 is "
    f"unbiased. It and the next two columns are averages over {DRAWS:,} drawn rounds. Bias: length of the error of the "
    "mean gradient at the final model, relative to the full gradient. Turn: the same after the best common factor, "
    "which is what no choice of r can remove. Accuracy in percent over all 100 clients and over the 30 slow ones, "
    "whether they are present or not. Loss: training loss of all clients.",
)


def _point(rounds: Rounds, index: int) -> tuple[int, float, float]:
    """Return the round, the accuracy of all existing users as they are, and their training loss."""
    found = evaluate(rounds.clients, rounds.shared, 0, rounds.existing.tolist(), [])
    return index, round(100 * float(found.test.as_is.accuracy.mean()), 2), float(f"{found.train_loss:.4g}")


def _bias(rounds: Rounds) -> dict[str, float]:
    """Compare the mean of the drawn gradients with the full gradient, both at the current model."""
    sizes = torch.as_tensor(rounds.clients.sizes(), dtype=torch.float64)
    mean = torch.zeros(len(sizes), dtype=torch.float64)
    first = len(rounds.history) + 1
    for index in range(first, first + DRAWS):
        _, answering, rnd = rounds.drawn(index)
        mean[answering] += rounds.method.weights(sizes[answering], rnd) / DRAWS
    gradients = _gradients(rounds)
    full = (sizes / sizes.sum()) @ gradients
    seen = mean @ gradients
    best = (seen @ full) / (seen @ seen)
    return {
        "step": _short(mean.sum()),
        "bias": _short((seen - full).norm() / full.norm()),
        "turn": _short((best * seen - full).norm() / full.norm()),
    }


def _gradients(rounds: Rounds) -> Tensor:
    """Return the gradient of each client's loss over the shared model, as rows. Nothing changes on the clients."""
    _, _, rnd = rounds.drawn(len(rounds.history) + 1)
    rows = []
    for client in range(len(rounds.clients.ids)):
        reply = rounds.clients.update(rounds.shared, [client], torch.ones(1, dtype=torch.float64), rnd, scored=False)
        assert reply.update is not None
        rows.append(torch.cat([value.flatten() for value in reply.update.tensors.values()]))
    return torch.stack(rows).double()


def _group(as_is: Scores, adapted: Scores, group: set[int]) -> dict[str, float]:
    means = (round(100 * float(scores.only(group).accuracy.mean()), 2) for scores in (as_is, adapted))
    return Group(*means)._asdict()


def _over(found: Sequence[Mapping[str, float]], name: str, form: str) -> str:
    """Return the mean over seeds with its standard error."""
    mean = seed_mean([each[name] for each in found])
    if mean is None:
        return DASH
    return format(mean.mean, form) + ("" if mean.stderr is None else f" ± {mean.stderr:{form}}")


def _line(situation: str, correction: str, found: Sequence[Result], key: str) -> Line:
    values = [statistics.fmean(column) for column in zip(*(each["curve"][key] for each in found), strict=True)]
    color, _ = look(list(SITUATIONS).index(situation))
    solid = correction != "without"
    return Line(situation, found[0]["curve"]["round"], values, color, "solid" if solid else "dash", solid)


def _short(value: Tensor) -> float:
    return float(f"{float(value):.4g}")
