"""E: how a round grows with local steps, cohort and width on A's shape with K = 2, and with local steps on C's network.

One of tau = 50, r = 20, width = 200 is varied at a time. FedAvg's rounds grow with all three alike. PFLEGO's local
steps but the last touch heads only: the dearer the body, the less they show.
"""

from typing import Any

from benchmarks import conv, paper_size
from benchmarks.result import Figure, Result, ratio
from benchmarks.timing import Work, interleave, rounds
from coterie.data.federation import Federation

VARIED = {"tau": (1, 5, 25, 50, 100), "r": (5, 10, 20, 40), "width": (50, 100, 200, 400)}


def measure(repeats: int) -> Result:
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
        "E: PFLEGO (fused) and FedAvg (auto) as one thing grows: a round",
        seconds,
        [
            growth("PFLEGO", "tau", at_most=3),
            growth("PFLEGO on conv4", "tau", at_most=1.3),
            growth("FedAvg", "tau"),
            *(growth(series, what) for what in ("r", "width") for series in ("PFLEGO", "FedAvg")),
        ],
        [f"PFLEGO has {repeats} turns, FedAvg and conv4, which are slow, {few}."],
    )


def cases() -> list[tuple[str, int]]:
    return [(what, value) for what, values in VARIED.items() for value in values]


def on_dense(
    data: Federation,
    method: str,
    engine: str,
    tau: int = paper_size.TAU,
    r: int = paper_size.COHORT,
    width: int = paper_size.HIDDEN,
) -> Work:
    model: dict[str, Any] = {"name": "mlp", "hidden": [width]}
    return rounds(data, engine, r, method={"name": method, "tau": tau}, model=model)


def on_images(data: Federation, tau: int) -> Work:
    return rounds(data, "fused", conv.CLIENTS, method={"name": "pflego", "tau": tau}, model=conv.MODEL)
