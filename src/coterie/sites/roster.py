"""The list of sites that may connect to a server: a name and a public key for each.

A site is its key. Names are for people, and the server takes a site's name from this list only, never from a message.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from coterie.errors import UserError
from coterie.registry import nearest
from coterie.sites.certs import openssh
from coterie.sites.files import changing, timestamp
from coterie.sites.names import check_name
from coterie.storage.files import PRIVATE, write_atomically
from coterie.storage.seal import BrokenSealError, read_json, sealed_json

FILE = "sites.json"
"""Usual name of the file, in the server's folder."""


class Site(NamedTuple):
    """An entry of the list."""

    name: str
    key: str
    """Public key in OpenSSH format, without a comment."""
    added: str
    """Time in UTC."""
    removed: str | None = None
    """Time in UTC, or None if the site may connect."""


class Roster:
    """The list of sites in a file. A missing file is an empty list. Several processes may use it at the same time."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def entries(self) -> list[Site]:
        """Return all entries, also those that were removed, in the order in which they were added."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise UserError(f"cannot read the list of sites {self.path}: {error.strerror}") from None
        try:
            return [Site(**entry) for entry in read_json(content)["sites"]]
        except (BrokenSealError, ValueError, KeyError, TypeError):
            raise UserError(
                f"{self.path} is damaged, or it was not written by `coterie sites`; restore it from a backup"
            ) from None

    def present(self) -> list[Site]:
        """Return the sites that may connect."""
        return [site for site in self.entries() if site.removed is None]

    def names(self) -> list[str]:
        """Return the names of the sites that may connect."""
        return [site.name for site in self.present()]

    def keys(self) -> dict[str, str]:
        """Return the name of each public key that may connect. Keys are in OpenSSH format, without a comment."""
        return {site.key: site.name for site in self.present()}

    def name_of(self, public_key: bytes) -> str | None:
        """Return the name of the site with this key in OpenSSH or PEM format, or None if it may not connect."""
        return self.keys().get(openssh(public_key, "the key of a site"))

    def add(self, name: str, public_key: bytes, source: str = "this") -> Site:
        """Let a site connect. `source` names the file of the key in error messages."""
        added = Site(check_name(name), openssh(public_key, source), timestamp())
        with changing(self.path):
            entries = self.entries()
            for other in entries:
                _check_added(added, other, source)
            self._write([*entries, added])
        return added

    def remove(self, name: str) -> Site:
        """Let a site connect no more. Its key can never be added again."""
        with changing(self.path):
            entries = self.entries()
            found = next((site for site in entries if site.name == name and site.removed is None), None)
            if found is None:
                if any(site.name == name for site in entries):
                    raise UserError(f"the site {name!r} was removed before")
                names = [site.name for site in entries if site.removed is None]
                raise UserError(
                    f"there is no site {name!r}{nearest(name, names)}; sites in {self.path}: "
                    f"{', '.join(names) or 'none'}"
                )
            removed = found._replace(removed=timestamp())
            self._write([removed if site is found else site for site in entries])
        return removed

    def _write(self, entries: Sequence[Site]) -> None:
        write_atomically(self.path, sealed_json({"sites": [site._asdict() for site in entries]}), PRIVATE)


def _check_added(added: Site, other: Site, source: str) -> None:
    """Raise UserError if a new entry is in conflict with an entry of the list."""
    if added.key == other.key and other.removed is not None:
        raise UserError(
            f"the key in {source} was removed as {other.name!r} on {other.removed} and cannot be added again; make a "
            f"new one with `coterie certs site {added.name}`"
        )
    if other.removed is not None:
        return
    if added.key == other.key:
        raise UserError(f"the key in {source} is on the list already, as {other.name!r}")
    if added.name.lower() == other.name.lower():  # one file or folder on some systems
        raise UserError(
            f"there is a site {other.name!r} already; choose another name, or remove that site first if {source} is "
            "its new key"
        )
