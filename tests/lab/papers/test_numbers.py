"""The version of the numbers rises with every change of results, beyond the rounding of float64.

`numbers.json` has figures of small runs of each method. After a change that is meant to change figures, add an entry to
`CHANGES` in src/coterie/lab/papers/numbers.py, and write them again:

    PYTHONPATH=tests python tests/lab/papers/test_numbers.py
"""

import json
from pathlib import Path

import pytest

import reference as ref
from coterie.lab.papers.numbers import VERSION
from coterie.training import train
from engines import METHODS, SIZES, model, registry

FILE = Path(__file__).with_name("numbers.json")
CASES = [
    f"{name}{batches}"
    for name in METHODS
    for batches in ("", " in batches")
    if not batches or hasattr(registry.load("method", name), "batch_size")
]


def figures(case: str) -> list[float]:
    """Return the training loss after three rounds, and the squared norm of the model of each client."""
    name, _, batches = case.partition(" ")
    cls = registry.load("method", name)
    options = {"tau": 5} if isinstance(getattr(cls, "tau", None), int) and cls.tau > 5 else {}
    options |= {"batch_size": 4} if batches else {}
    federation = ref.federation(SIZES, new=1)
    keys = {"rounds": 3, "seed": 3, "dtype": "float64", "engine": "loop", "settings": {"engine": {"threads": 1}}}
    keys |= {} if cls.everyone else {"clients_per_round": 4}
    run = train(federation, model=model("mlp"), method=cls(**options), **keys)
    norms = [sum(float((p.detach() ** 2).sum()) for p in run.model(each).parameters()) for each in run.ids]
    return [run.summary.train_loss, *norms]


def test_the_stored_figures_are_of_this_version():
    stored = json.loads(FILE.read_text())
    assert stored["version"] == VERSION, "write them again, as the docstring says"
    assert list(stored["figures"]) == CASES


@pytest.mark.parametrize("case", CASES)
def test_figures_change_with_the_version_only(case):
    stored = json.loads(FILE.read_text())["figures"][case]
    told = "figures of this method changed: add an entry to CHANGES in src/coterie/lab/papers/numbers.py"
    assert figures(case) == pytest.approx(stored, rel=1e-8), told


if __name__ == "__main__":
    content = {"version": VERSION, "figures": {case: figures(case) for case in CASES}}
    FILE.write_text(json.dumps(content, indent=1) + "\n")
