"""The benchmarks by their letters."""

import importlib
from collections.abc import Sequence

from benchmarks.result import Result
from coterie.errors import UserError

SUITE = {
    "A": "paper_size",
    "B": "tiny_clients",
    "C": "conv",
    "D": "population",
    "E": "growth",
    "F": "against_peers",
}


def choose(letters: Sequence[str]) -> list[str]:
    """Those that are named, or all of them."""
    chosen = [letter.upper() for letter in letters] or list(SUITE)
    for letter, meant in zip(letters, chosen, strict=False):
        if meant not in SUITE:
            raise UserError(f"no benchmark {letter!r}; there is: {', '.join(SUITE)}")
    return chosen


def measure(letter: str, repeats: int) -> Result:
    """Run one of them."""
    result: Result = importlib.import_module(f"benchmarks.{SUITE[letter]}").measure(repeats)
    return result
