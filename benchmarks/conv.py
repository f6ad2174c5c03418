"""C: one round of PFLEGO and of FedAvg with an expensive body, the Omniglot network of the PFLEGO paper.

There are 10 clients with 33 classes each (Omniglot has 1,623 characters in 50 alphabets, 32.5 per alphabet) and 490
examples of 28x28 (15 drawings of each character are for training), with tau = 50. PFLEGO needs one forward and one
backward pass of the body for any tau, and FedAvg needs 50 of each, so a factor of 50 is the limit. The paper measured
2.4x. It states tau/2 for its own algorithm, which needs two forward passes.
"""

import numpy as np

from benchmarks.result import Figure, Result, ratio
from benchmarks.timing import interleave, rounds, scaled
from coterie.data.federation import Federation

CLIENTS, EXAMPLES, SIDE, CLASSES = 10, 490, 28, 33
TAU = 50
PART = 2
"""Number of local steps that FedAvg is timed with."""

MODEL = {"name": "conv4"}


def measure(repeats: int) -> Result:
    """Time a round of both methods."""
    data = federation()
    fedavg = rounds(data, "auto", CLIENTS, method={"name": "fedavg", "tau": PART}, model=MODEL)
    seconds = interleave(
        {
            "PFLEGO, fused": rounds(data, "fused", CLIENTS, method={"name": "pflego", "tau": TAU}, model=MODEL),
            "FedAvg, auto": scaled(fedavg, TAU / PART),
        },
        repeats,
    )
    return Result(
        f"C: one round with conv4, {CLIENTS} clients x {EXAMPLES} examples, {CLASSES} classes each, tau = {TAU}",
        seconds,
        [Figure("FedAvg / PFLEGO", ratio(seconds, "FedAvg, auto", "PFLEGO, fused"), at_least=40)],
        [f"FedAvg is timed with {PART} local steps, and the time is multiplied by {TAU // PART}."],
    )


def federation() -> Federation:
    """Return a federation of random images in which all clients have the same number of classes."""
    rng = np.random.default_rng(0)
    x = rng.random((CLIENTS, EXAMPLES, SIDE, SIDE), dtype=np.float32)
    y = np.arange(EXAMPLES) % CLASSES
    return Federation.from_arrays({str(i): (x[i], y, x[i, :0], y[:0]) for i in range(CLIENTS)})
