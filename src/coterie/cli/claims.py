"""The command `coterie claims`."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from coterie.cli.common import exit_code, home, on_interrupt, screen

if TYPE_CHECKING:
    from coterie.lab.claims.stored import Results


def claims(
    results: Annotated[
        Path, typer.Option(callback=home, help="Folder with the stored results, in a checkout of Coterie.")
    ] = Path("results"),
    out: Annotated[Path, typer.Option(callback=home, help="Page to write.")] = Path("docs", "results", "index.md"),
    check: Annotated[
        bool, typer.Option("--check", help="Write no page: train some stored runs again, and compare every digit.")
    ] = False,
    cells: Annotated[int, typer.Option(min=1, help="Number of runs for --check, among those of up to a minute.")] = 3,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the choice of runs for --check.")] = 0,
) -> None:
    """Write the board of claims: what the papers say, what our stored results show, and the verdict."""
    from coterie.errors import UserError
    from coterie.lab.claims.board import Board
    from coterie.lab.claims.stored import Results
    from coterie.storage.files import write_atomically

    stored = Results(results)
    if check:
        _check(stored, cells, seed)
        return
    page = Board(stored, out.parent).page()
    if not out.parent.is_dir():
        raise UserError(f"{out.parent} is not a folder; run the command in a checkout of Coterie, or pass --out FILE")
    write_atomically(out, page.encode())
    Console().print(str(out), highlight=False, soft_wrap=True, markup=False)


def _check(results: "Results", cells: int, seed: int) -> None:
    from coterie.lab.claims.check import choose, replay, table

    chosen, replayed, interrupted = choose(results, cells, seed), [], on_interrupt()
    try:
        with tempfile.TemporaryDirectory() as folder:
            for n, choice in enumerate(chosen, 1):
                with screen.status(f"{choice.folder} {choice.cell.name} ({n} of {len(chosen)})"):
                    replayed.append(replay(results, choice, Path(folder), lambda: bool(interrupted)))
    except KeyboardInterrupt:
        raise typer.Exit(exit_code(interrupted)) from None
    Console().print(table(replayed).printed(), highlight=False)
    if not all(each.expected for each in replayed):
        raise typer.Exit(1)
