"""The commands `coterie sites add`, `list` and `remove`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from coterie.cli.common import home
from coterie.errors import UserError

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the site.", show_default=False)]
FolderOption = Annotated[
    Path,
    typer.Option("--in", callback=home, metavar="DIR", help="Folder of the server, where the list is sites.json."),
]


def add_site(
    name: NameArgument,
    key: Annotated[Path, typer.Argument(callback=home, metavar="PUBFILE", help="Public key of the site, NAME.pub.")],
    folder: FolderOption = Path(),
) -> None:
    """Let a site connect to the server: add its name and its public key to the list of sites."""
    from coterie.sites.certs import fingerprint, read_public_key
    from coterie.sites.roster import FILE, Roster

    site = Roster(folder / FILE).add(name, read_public_key(key).encode(), str(key))
    _say(f"added {name} to {folder / FILE}")
    _say(f"fingerprint: {fingerprint(site.key)}")
    _say(f"Compare it with the one that `coterie certs site {name}` showed at the site, for example on the phone.")


def list_sites(folder: FolderOption = Path()) -> None:
    """List the sites that may connect to the server, and those that were removed."""
    from coterie.sites.certs import fingerprint
    from coterie.sites.roster import FILE, Roster

    roster = Roster(folder / FILE)
    table = Table()
    for heading in ("name", "fingerprint of the key", "added", "removed"):
        table.add_column(heading, overflow="fold")
    for site in (sites := roster.entries()):
        table.add_row(site.name, fingerprint(site.key), site.added, site.removed or "")
    if not sites:
        raise UserError(
            f"there is no list of sites at {roster.path}; `coterie sites add` starts one, --in names its folder"
        )
    Console().print(table)


def remove_site(name: NameArgument, folder: FolderOption = Path()) -> None:
    """Let a site connect no more. Its key can never be added again; a site that returns needs a new one."""
    from coterie.sites.roster import FILE, Roster

    Roster(folder / FILE).remove(name)
    _say(f"removed {name} from {folder / FILE}. Its key cannot be added again.")


def _say(line: str) -> None:
    Console().print(line, highlight=False, soft_wrap=True, markup=False)
