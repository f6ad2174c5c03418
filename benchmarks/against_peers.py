"""F: the same FedAvg rounds in other systems, if they are installed (the extra `peers`).

The tiny clients of B are compared with Coterie's engine vmap, and the 20 clients of 600 examples of A with the engine
that `auto` chooses. Each peer runs in its own process, warms up and then plays all its rounds. Coterie is therefore
timed both before and after the peers.
"""

import statistics

from benchmarks import paper_size, tiny_clients
from benchmarks.peers import Work, time_peers
from benchmarks.result import Figure, Result
from benchmarks.timing import Seconds, interleave, rounds

TINY, PAPER = "many tiny clients", "paper size"
WORK = {
    TINY: Work(
        clients=tiny_clients.CLIENTS,
        examples=tiny_clients.EXAMPLES,
        features=tiny_clients.FEATURES,
        hidden=tiny_clients.HIDDEN,
        classes=tiny_clients.CLASSES,
        steps=tiny_clients.STEPS,
        batch=tiny_clients.BATCH,
    ),
    PAPER: Work(
        clients=paper_size.COHORT,
        examples=paper_size.EXAMPLES,
        features=paper_size.FEATURES,
        hidden=paper_size.HIDDEN,
        classes=2,
        steps=paper_size.TAU,
        batch=0,
    ),
}


def measure(repeats: int) -> Result:
    """Time Coterie and its peers."""
    tiny = rounds(
        tiny_clients.federation(tiny_clients.CLIENTS),
        "vmap",
        tiny_clients.CLIENTS,
        method=tiny_clients.METHOD,
        model=tiny_clients.MODEL,
    )
    paper = rounds(
        paper_size.federation(2, paper_size.COHORT),
        "auto",
        paper_size.COHORT,
        method={"name": "fedavg", "tau": paper_size.TAU},
    )
    ours = {f"Coterie, {TINY}": tiny, f"Coterie, {PAPER}": paper}
    before = interleave(ours, repeats)
    theirs = {what: time_peers(work, repeats) for what, work in WORK.items()}
    after = interleave(ours, repeats)
    seconds: Seconds = {name: before[name] + after[name] for name in ours}
    figures, notes = [], []
    for what, peers in theirs.items():
        known = {name: took for name, took in peers.items() if isinstance(took, float)}
        notes += [f"{name}, {what}: {why}" for name, why in peers.items() if isinstance(why, str)]
        seconds |= {f"{name}, {what}": [took] for name, took in known.items()}
        own = statistics.median(seconds[f"Coterie, {what}"])
        figures += [Figure(f"{name} / Coterie, {what}", took / own) for name, took in known.items()]
        if known:
            target = 25 if what == TINY else 1.7
            figures.append(Figure(f"fastest peer / Coterie, {what}", min(known.values()) / own, at_least=target))
    return Result("F: one round of FedAvg in other systems", seconds, figures, notes)
