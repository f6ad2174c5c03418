"""E: growth of the time per round with local steps, cohort size and width.

One of tau = 50, r = 20 and width = 200 is varied at a time, with the clients of A and K = 2. Local steps are also
varied with the network of C. Rounds of FedAvg grow with all three. All local steps of PFLEGO except the last one
involve only the heads, so the more expensive the body is, the less they matter.
"""

from typing import Any

from benchmarks import conv, paper_size
from benchmarks.result import Figure, Result, ratio
from benchmarks.timing import Work, interleave, rounds
from coterie.data.federation import Federation

VARIED = {"tau": (1, 5, 25, 50, 100), "r": (5, 10, 20, 40), "width": (50, 100, 200, 400)}


def measure(repeats: int) -> Result:
    """Time rounds of both methods for all values."""
    few = (repeats + 1) // 2
    dense, images = paper_size.federation(2), conv.federation()
    pflego = {
        f"PFLEGO, {what} = {value}": on_dense(dense, "pflego", "fused", **{what: value}) for what, value in cases()
    }
    fedavg = {
        f"FedAvg, {what} = {value}": on_dense(dense, "fedavg", "auto", **{what: value}) for what, value in cases()
    }
    deep = {f"PFLEGO on conv4, tau = {tau}": on_images(images, tau) for tau in VARIED["tau"]}
    seconds = interleave(pflego, repeats) | interleave(fedavg, few) | interleave(deep, few)

    def growth(series: str, what: str, at_most: float | None = None) -> Figure:
        first, *_, last = VARIED[what]
        value = ratio(seconds, f"{series}, {what} = {last}", f"{series}, {what} = {first}")
        return Figure(f"{series}, {what} from {first} to {last}", value, at_most)

    return Result(
        "E: one round of PFLEGO (fused) and of FedAvg (auto) as one parameter grows",
        seconds,
        [
            growth("PFLEGO", "tau", at_most=3),
            growth("PFLEGO on conv4", "tau", at_most=1.3),
            growth("FedAvg", "tau"),
            *(growth(series, what) for what in ("r", "width") for series in ("PFLEGO", "FedAvg")),
        ],
        [f"PFLEGO is repeated {repeats} times. FedAvg and conv4 are slow and are repeated {few} times."],
    )


def cases() -> list[tuple[str, int]]:
    """Return all pairs of a parameter and a value."""
    return [(what, value) for what, values in VARIED.items() for value in values]


def on_dense(
    data: Federation,
    method: str,
    engine: str,
    tau: int = paper_size.TAU,
    r: int = paper_size.COHORT,
    width: int = paper_size.HIDDEN,
) -> Work:
    """Return rounds with the clients of A as work to time."""
    model: dict[str, Any] = {"name": "mlp", "hidden": [width]}
    return rounds(data, engine, r, method={"name": method, "tau": tau}, model=model)


def on_images(data: Federation, tau: int) -> Work:
    """Return rounds of PFLEGO with the network of C as work to time."""
    return rounds(data, "fused", conv.CLIENTS, method={"name": "pflego", "tau": tau}, model=conv.MODEL)
