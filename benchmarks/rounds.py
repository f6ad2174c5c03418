"""Seconds per round: PFLEGO against FedAvg, on the loop engine, as ratios taken in one run.

    python benchmarks/rounds.py

The federation has the shape of the PFLEGO paper's MNIST experiments: 100 clients with 600 examples of 784 features, two
classes each, a body of 200 units, a cohort of 20. Data are random: time does not depend on what is in them. Rounds of
the methods alternate, and the figure is the median over them, so that a busy machine disturbs all alike.
"""

import statistics
from dataclasses import replace

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from coterie import Federation
from coterie.methods import PFLEGO, FedAvg
from coterie.recipe import Recipe
from coterie.training import prepare

REPEATS = 5
METHODS = {
    "PFLEGO, tau = 1": PFLEGO(tau=1),
    "PFLEGO, tau = 50": PFLEGO(tau=50),
    "FedAvg, tau = 1": FedAvg(tau=1),
    "FedAvg, tau = 50": FedAvg(tau=50),
}


def federation(clients: int = 100, examples: int = 600) -> Federation:
    rng = np.random.default_rng(0)
    x, y = rng.random((examples, 784), dtype=np.float32), np.arange(examples) % 2
    return Federation.from_arrays({str(i): (x, y + 2 * (i % 5), x[:2], y[:2] + 2 * (i % 5)) for i in range(clients)})


def main() -> None:
    data = federation()
    games = {}
    for name, method in METHODS.items():
        recipe = Recipe.parse({"run": {"rounds": 10_000, "clients_per_round": 20, "eval_every": 10_000}})
        games[name] = prepare(replace(recipe, method=method), data).play()
        next(games[name])  # the first round also counts operations and warms up
    costs: dict[str, list[dict[str, float]]] = {name: [] for name in games}
    for _ in track(range(REPEATS), "rounds"):
        for name, game in games.items():
            costs[name].append(next(game)["cost"])
    seconds = {name: statistics.median(cost["seconds"] for cost in each) for name, each in costs.items()}
    table = Table("method", "seconds a round", "against PFLEGO, tau = 50", "GFLOP a round", "body passes a client")
    for name, each in costs.items():
        table.add_row(
            name,
            f"{seconds[name]:.2f}",
            f"{seconds[name] / seconds['PFLEGO, tau = 50']:.2f}",
            f"{each[0]['flops'] / 1e9:.1f}",
            f"{each[0]['body_forwards'] / 20:.0f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
