"""The command `coterie bench`."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from coterie.cli.common import home
from coterie.errors import UserError


def bench(
    letters: Annotated[
        list[str] | None,
        typer.Argument(help="Benchmarks A to K, see docs/performance.md (default: all)."),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Repetitions of each variant; the medians are reported.")] = 5,
    out: Annotated[
        Path, typer.Option(callback=home, help="Folder for the results, one LETTER.json per benchmark.")
    ] = Path("bench"),
) -> None:
    """Measure speed and memory, and compare the ratios with their targets. Needs a source checkout."""
    _add_checkout()
    from benchmarks.suite import choose, measure

    for letter in choose(letters or []):
        result = measure(letter, repeats)
        Console().print(result.printed(), highlight=False)
        result.write(out / f"{letter}.json")


def _add_checkout() -> None:
    """Make the folder `benchmarks/` of the checkout importable. An installed wheel does not contain it."""
    checkout = Path(__file__).parents[3]
    if not (checkout / "benchmarks" / "suite.py").is_file():
        raise UserError(
            "the benchmarks are not part of the installed package; clone the repository, run `make .venv/ready` there "
            "and use `.venv/bin/coterie bench`"
        )
    if str(checkout) not in sys.path:
        sys.path.insert(0, str(checkout))
