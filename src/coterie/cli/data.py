"""The commands `coterie data fetch`, `show` and `split`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from coterie.cli.common import Changes, RecipeArgument, home
from coterie.errors import UserError

DataArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of a data set, from `coterie datasets`.")]


def fetch_data(name: DataArgument, changes: Changes = None) -> None:
    """Download a data set if its files are not on disk yet, and print their paths."""
    from coterie import recipe as recipes

    files = recipes.read({"data": {"name": name}}, changes or []).dataset().files()
    for line in map(str, files) if files else [f"{name}: nothing to download"]:
        Console().print(line, highlight=False, soft_wrap=True, markup=False)


def show_data(
    name: DataArgument,
    changes: Changes = None,
    out: Annotated[
        Path | None, typer.Option(callback=home, metavar="FILE", help="Also write an HTML page to this file.")
    ] = None,
) -> None:
    """Show the classes and sizes of a data set, and how its examples are distributed to clients."""
    from coterie import recipe as recipes
    from coterie.report import census
    from coterie.report.data_page import data_page
    from coterie.report.describe import dealt, described

    settings = recipes.read({"data": {"name": name}}, changes or [])
    examples = settings.dataset().load()
    Console().print(described(examples), "")
    federation, problem = None, ""
    try:
        federation = settings.deal(examples)
        Console().print(dealt(federation))
    except UserError as error:
        problem = str(error)
        Console().print(f"The examples could not be distributed to clients: {problem}", highlight=False, markup=False)
    if out is not None:
        tree = settings.as_dict()
        dealing = {"data": tree["data"], "partition": tree["partition"], "run": {"seed": settings.run.seed}}
        clients = None if federation is None else census.of_clients(federation)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(data_page(dealing, census.of_examples(examples), clients, problem), encoding="utf-8")
        Console().print(str(out), highlight=False, soft_wrap=True, markup=False)


def split_data(
    recipe: RecipeArgument,
    changes: Changes = None,
    out: Annotated[
        Path, typer.Option(callback=home, metavar="DIR", help="Folder for the files, one NAME.npz for each client.")
    ] = Path(),
) -> None:
    """Write the examples of each client of RECIPE to a file of its own, for example to try out real sites."""
    from coterie import recipe as recipes
    from coterie.data.own.export import write_client

    federation = recipes.read(recipe, changes or []).federation()
    paths = [out / f"{name}.npz" for name in federation.ids]
    if taken := next((path for path in paths if path.exists()), None):
        raise UserError(f"{taken} exists; choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    for client, path in enumerate(paths):
        write_client(federation, client, path)
        Console().print(str(path), highlight=False, soft_wrap=True, markup=False)
