"""All commands."""

import logging
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.logging import RichHandler

from coterie import __version__
from coterie.cli import data, listings
from coterie.cli.bench import bench
from coterie.cli.common import complain, logger, screen
from coterie.cli.hints import WithHints
from coterie.cli.reproduce import reproduce
from coterie.cli.run import run
from coterie.cli.sweep import sweep
from coterie.errors import DiskError, DivergedError, UserError

app = typer.Typer(
    help="Train and compare methods of personalized federated learning.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(cls=WithHints)(run)
app.command("methods")(listings.list_methods)
app.command("datasets")(listings.list_datasets)
app.command("partitions")(listings.list_partitions)
app.command("models")(listings.list_models)
app.command("settings")(listings.list_settings)
app.command("recipes")(listings.list_recipes)
app.command(cls=WithHints)(reproduce)
app.command(cls=WithHints)(sweep)
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


def run_app() -> None:
    """Run the command that the arguments name. Errors that the user can fix are printed and exit with code 2."""
    logger.setLevel(logging.INFO)
    logger.addHandler(RichHandler(console=screen, show_time=False, show_path=False, show_level=False))
    try:
        app()
    except UserError as error:
        complain("error", str(error))
        sys.exit(2)
    except (DivergedError, DiskError, OSError) as error:
        complain("stopped", str(error))
        sys.exit(1)
