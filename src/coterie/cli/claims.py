"""The command `coterie claims`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from coterie.cli.common import home


def claims(
    results: Annotated[
        Path, typer.Option(callback=home, help="Folder with the stored results, in a checkout of Coterie.")
    ] = Path("results"),
    out: Annotated[Path, typer.Option(callback=home, help="Page to write.")] = Path("docs", "results", "index.md"),
) -> None:
    """Write the board of claims: what the papers say, what our stored results show, and the verdict."""
    from coterie.errors import UserError
    from coterie.lab.claims.board import Board
    from coterie.lab.claims.stored import Results
    from coterie.storage.files import write_atomically

    board = Board(Results(results), out.parent)
    page = board.page()
    if not out.parent.is_dir():
        raise UserError(f"{out.parent} is not a folder; run the command in a checkout of Coterie, or pass --out FILE")
    write_atomically(out, page.encode())
    Console().print(str(out), highlight=False, soft_wrap=True, markup=False)
