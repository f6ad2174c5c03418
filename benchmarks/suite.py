"""All benchmarks, by their letters."""

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
    "G": "user_loops",
    "H": "whole_runs",
    "I": "threads",
    "J": "choices",
    "K": "real_sites",
}


def choose(letters: Sequence[str]) -> list[str]:
    """Return the named benchmarks, or all of them if none is named."""
    chosen = [letter.upper() for letter in letters] or list(SUITE)
    for letter, meant in zip(letters, chosen, strict=False):
        if meant not in SUITE:
            raise UserError(f"no benchmark {letter!r}; available: {', '.join(SUITE)}")
    return chosen


def measure(letter: str, repeats: int) -> Result:
    """Run one benchmark."""
    result: Result = importlib.import_module(f"benchmarks.{SUITE[letter]}").measure(repeats)
    return result
