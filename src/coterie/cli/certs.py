"""The commands `coterie certs new`, `renew`, `show` and `site`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from coterie.cli.common import home

if TYPE_CHECKING:
    from coterie.sites.certs import Description

FolderArgument = Annotated[
    Path, typer.Argument(callback=home, metavar="DIR", help="Folder of the server's certificates.", show_default=False)
]
DaysOption = Annotated[int, typer.Option(min=1, max=3650, help="Number of days for which the certificate is valid.")]


def new_certs(
    folder: FolderArgument,
    names: Annotated[
        list[str] | None,
        typer.Option(
            "--for",
            metavar="NAME_OR_IP",
            help="DNS name or IP address under which sites reach the server. Repeatable, at least one.",
        ),
    ] = None,
    days: DaysOption = 825,
) -> None:
    """Make a certificate authority in a new folder, and a server certificate that it signs."""
    from coterie.sites import certs

    _show(certs.new(folder, names or [], days))
    _say(f"Next: give {folder / certs.CA} to all sites. Keep the files that end in .key, and give them to nobody.")
    _say(f"{certs.CA_KEY} is only needed for `coterie certs renew`, so that you can keep it on another machine.")


def renew_certs(
    folder: FolderArgument,
    names: Annotated[
        list[str] | None,
        typer.Option("--for", metavar="NAME_OR_IP", help="Names and addresses of the server (default: as before)."),
    ] = None,
    days: DaysOption = 825,
) -> None:
    """Replace the server certificate of a folder by a new one. The sites do not have to change anything."""
    from coterie.sites import certs

    _show(certs.renew(folder, names or [], days))
    _say("Next: restart `coterie server`, so that it uses the new certificate.")


def show_certs(folder: FolderArgument) -> None:
    """Show the names and the expiry dates of the certificates in a folder, and check that its files fit together."""
    from coterie.sites import certs

    _show(certs.describe(folder))
    certs.check(folder)


def site_key(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the site.", show_default=False)],
    out: Annotated[Path, typer.Option(callback=home, metavar="DIR", help="Folder for the two files.")] = Path(),
) -> None:
    """Make the key pair of a site. Run this command at the site, because the private key should never leave it."""
    from coterie.sites import certs

    made = certs.site(out, name)
    _say(f"private key: {made.private}")
    _say(f"public key:  {made.public}")
    _say("fingerprint: " + certs.fingerprint(certs.read_public_key(made.public)))
    _say("Next:")
    _say(f"  1. Give {made.public} to the operator of the server. {made.private} stays here.")
    _say(f"  2. The operator checks the fingerprint with you, and runs: coterie sites add {name} {made.public.name}")


def _show(found: "Description") -> None:
    _say(f"folder:              {found.folder}")
    _say(f"server certificate:  {', '.join(found.names)}; valid until {found.expires.date()}")
    _say(f"authority (ca.crt):  valid until {found.ca_expires.date()}, sha256 {found.ca_fingerprint}")


def _say(line: str) -> None:
    Console().print(line, highlight=False, soft_wrap=True, markup=False)
