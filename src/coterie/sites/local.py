"""A federation of real processes on this machine, for trying things out: a server, and sites with a part of some data.

Everything is as it would be on several machines, with TLS, keys and policies. Only the data are made by dividing those
of a recipe, and every site accepts every run.
"""

import logging
import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from coterie.clients.flower_command import child_command
from coterie.data.federation import Federation
from coterie.data.own.export import write_client
from coterie.errors import StoppedError, UserError
from coterie.sites import certs, policy
from coterie.sites.hosts import ADDRESS as HOST
from coterie.sites.hosts import SERVER, Hosts
from coterie.sites.roster import FILE, Roster
from coterie.storage.files import make_private
from coterie.storage.origin import RECIPE

logger = logging.getLogger("coterie")
ADDRESS = "127.0.0.1"
PATIENCE = 10.0
"""Seconds for a process to end by itself."""


@dataclass
class Local:
    """The processes and the folders of a federation on this machine."""

    folder: Path
    federation: Federation
    port: int
    hosts: Hosts | None = None
    """Networks in which the processes run, or None for that of this machine."""
    server: subprocess.Popen[bytes] | None = None
    sites: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """Address of the server."""
        return HOST if self.hosts else ADDRESS

    @property
    def server_folder(self) -> Path:
        """Folder with the certificates and the list of sites."""
        return self.folder / "server"

    @property
    def run(self) -> Path:
        """Folder of the run."""
        return self.folder / "run"

    def site(self, name: str) -> Path:
        """Return the folder of a site."""
        return self.folder / "sites" / name

    def prepare(self) -> None:
        """Make certificates, keys and data."""
        make_private(self.folder)
        certs.new(self.server_folder, [self.address, "localhost"])
        roster = Roster(self.server_folder / FILE)
        for i, name in enumerate(self.federation.ids):
            folder = self.site(name)
            make_private(folder)
            made = certs.site(folder, name)
            roster.add(name, made.public.read_bytes())
            (folder / policy.FILE).write_text('mode = "accept-all"\n')
            write_client(self.federation, i, folder / "data.npz")

    def check_prepared(self) -> None:
        """Raise UserError unless everything was made for the same sites."""
        sites = self.folder / "sites"
        made = {path.name for path in sites.iterdir()} if sites.is_dir() else set()
        if not (self.folder / RECIPE).exists():
            raise UserError(
                f"{self.folder} is not a folder of `coterie local`, or it was stopped before everything was made: "
                "remove it, and run the same command without --resume"
            )
        if made != set(self.federation.ids):
            raise UserError(
                f"{self.folder} has {len(made)} sites, and this command would divide the data among "
                f"{len(self.federation.ids)}; resume with the same recipe, --sites and --set"
            )

    def start(self, arguments: Sequence[str]) -> None:
        """Start the server with further arguments, and all sites."""
        self.start_server(arguments)
        for name in self.federation.ids:
            self.start_site(name)

    def start_server(self, arguments: Sequence[str]) -> None:
        """Start the server, with the run that is there or a new one."""
        listen = f"{self.address}:{self.port}"
        run = ["--resume", str(self.run)] if (self.run / "recipe.toml").exists() else ["--out", str(self.run)]
        self.server = self._start(
            SERVER,
            ["server", "--listen", listen, "--tls", str(self.server_folder), *run, *arguments],
            self.folder / "server.log",
        )

    def start_site(self, name: str, *more: str) -> None:
        """Start the process of a site, which starts its courier. `more` are further arguments of `coterie client`."""
        folder, is_new = self.site(name), bool(self.federation.is_new[self.federation.ids.index(name)])
        options = {"--server": f"{self.address}:{self.port}", "--name": name, "--data": str(folder / "data.npz")}
        options |= {
            "--state": str(folder),
            "--key": str(folder / f"{name}.key"),
            "--ca": str(self.server_folder / certs.CA),
        }
        flags = ["--regression"] if not self.federation.labels else []
        arguments = [part for option in options.items() for part in option]
        command = ["client", *arguments, *flags, *(["--new"] if is_new else []), *more]
        self.sites[name] = self._start(name, command, folder / "site.log")

    def _start(self, host: str, arguments: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        with log.open("ab") as out:
            return subprocess.Popen(  # noqa: S603 - a command of our own
                [*(self.hosts.on(host) if self.hosts else []), *child_command("coterie", *arguments)],
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "COLUMNS": "200"},
                start_new_session=True,
            )

    def check(self) -> None:
        """Raise StoppedError if a site has ended."""
        for name, process in self.sites.items():
            if process.poll() is not None:
                raise StoppedError(f"the site {name} has ended: {last_words(self.site(name) / 'site.log')}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        everyone = [process for process in (self.server, *self.sites.values()) if process is not None]
        for process in everyone:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in everyone:
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def last_words(file: Path) -> str:
    """Return the last lines of a log."""
    lines = file.read_text(errors="replace").strip().splitlines() if file.exists() else []
    return " ".join(lines[-3:]) or "it said nothing"
