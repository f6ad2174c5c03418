"""All commands."""

import logging
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.logging import RichHandler

from coterie import __version__
from coterie.cli import certs, data, listings, sites
from coterie.cli.bench import bench
from coterie.cli.claims import claims
from coterie.cli.client import client_app, courier
from coterie.cli.common import complain, logger, screen
from coterie.cli.hints import WithHints
from coterie.cli.local import local
from coterie.cli.predict import predict
from coterie.cli.reproduce import reproduce
from coterie.cli.run import run
from coterie.cli.server import server
from coterie.cli.status import status
from coterie.cli.sweep import sweep
from coterie.errors import DiskError, DivergedError, StoppedError, UserError

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
app.command()(claims)
app.command(cls=WithHints)(sweep)
app.command()(bench)
data_app = typer.Typer(help="Download and inspect data sets.", no_args_is_help=True)
data_app.command("fetch")(data.fetch_data)
data_app.command("show")(data.show_data)
data_app.command("split")(data.split_data)
app.add_typer(data_app, name="data")
app.command(cls=WithHints)(server)
certs_app = typer.Typer(help="Make certificates for a server, and the key of a site.", no_args_is_help=True)
certs_app.command("new")(certs.new_certs)
certs_app.command("renew")(certs.renew_certs)
certs_app.command("show")(certs.show_certs)
certs_app.command("site")(certs.site_key)
app.add_typer(certs_app, name="certs")
sites_app = typer.Typer(help="Choose which sites may connect to a server.", no_args_is_help=True)
sites_app.command("add")(sites.add_site)
sites_app.command("list")(sites.list_sites)
sites_app.command("remove")(sites.remove_site)
app.add_typer(sites_app, name="sites")
app.add_typer(client_app, name="client")
app.command()(courier)
app.command()(status)
app.command()(predict)
app.command(cls=WithHints)(local)


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
    except (DivergedError, DiskError, StoppedError, OSError) as error:
        complain("stopped", str(error))
        sys.exit(1)
