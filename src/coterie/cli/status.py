"""The command `coterie status`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from coterie.errors import UserError


def status(
    where: Annotated[
        str, typer.Argument(metavar="WHERE", help="Folder of a run on the server, or the address of a server.")
    ],
) -> None:
    """Show how far a run with real sites is, or whether a server answers at HOST:PORT."""
    from coterie.settings import user_path
    from coterie.sites.status import of_address, of_run

    folder: Path = user_path(where)
    if folder.is_dir():
        lines = of_run(folder)
    elif ":" in where:
        lines = of_address(where)
    else:
        raise UserError(f"{where} is neither a folder nor an address HOST:PORT")
    for line in lines:
        Console().print(line, highlight=False, soft_wrap=True, markup=False)
