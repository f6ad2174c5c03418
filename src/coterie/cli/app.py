"""All commands, and the entry point of `coterie`."""

import logging
import sys
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.logging import RichHandler
from rich.markup import escape

from coterie import __version__
from coterie.cli import data, listings
from coterie.cli.bench import bench
from coterie.cli.common import logger, screen
from coterie.cli.reproduce import reproduce
from coterie.cli.run import run
from coterie.cli.sweep import sweep
from coterie.errors import DivergedError, UserError

app = typer.Typer(
    help="Train and compare methods of personalized federated learning.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(run)
app.command("methods")(listings.list_methods)
app.command("datasets")(listings.list_datasets)
app.command("partitions")(listings.list_partitions)
app.command("models")(listings.list_models)
app.command("recipes")(listings.list_recipes)
app.command()(reproduce)
app.command()(sweep)
app.command()(bench)
data_app = typer.Typer(help="Download and inspect data sets.", no_args_is_help=True)
data_app.command("fetch")(data.fetch_data)
data_app.command("show")(data.show_data)
app.add_typer(data_app, name="data")


@app.callback(invoke_without_command=True)
def coterie(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        Console().print(f"coterie {__version__}", highlight=False)
        raise typer.Exit


def main() -> None:
    """Run the command line. Errors that the user can fix are printed in a line or two and exit with code 2."""
    logger.setLevel(logging.INFO)
    logger.addHandler(RichHandler(console=screen, show_time=False, show_path=False, show_level=False))
    try:
        app()
    except UserError as error:
        _stop("error", error, 2)
    except (DivergedError, OSError) as error:
        _stop("stopped", error, 1)


def _stop(word: str, error: Exception, code: int) -> NoReturn:
    screen.print(f"[bold red]{word}:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
    sys.exit(code)
