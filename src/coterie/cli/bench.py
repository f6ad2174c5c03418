"""coterie bench."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console


def bench(
    letters: Annotated[list[str] | None, typer.Argument(help="Which of A to F; all unless given.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Turns that each variant has; figures are medians.")] = 5,
    out: Annotated[Path, typer.Option(help="The folder for LETTER.json.")] = Path("bench"),
) -> None:
    """Measure speed and memory, as ratios taken in one run, beside their targets."""
    from coterie.benchmarks.suite import choose, measure

    for letter in choose(letters or []):
        result = measure(letter, repeats)
        Console().print(result.printed(), highlight=False)
        result.write(out / f"{letter}.json")
