"""Several hosts on one machine, for a dry run: network namespaces of Linux, each with interfaces and ports of its own.

The server and each site are a host. A cable connects each site with the server and with nobody else. Everything else
is shared, such as the disk. Only root can make namespaces.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from coterie.errors import StoppedError, UserError

SERVER = "server"
ADDRESS = "10.77.255.1"
"""Address of the server, which all sites can reach."""
_MOST = 250
_LISTENING = "0A"
"""State of a socket that waits for connections, in /proc/net/tcp."""
_TRY = """
import socket, sys
for place in sys.argv[1:]:
    host, port = place.split(":")
    try:
        socket.create_connection((host, int(port)), timeout=2).close()
        print(place)
    except OSError:
        pass
"""


class Hosts:
    """A server and sites, each in a network of its own. They are gone when the block ends."""

    def __init__(self, sites: Sequence[str]) -> None:
        if sys.platform != "linux":
            raise UserError("--hosts needs the network namespaces of Linux; omit it on this system")
        if shutil.which("ip") is None:
            raise UserError("--hosts needs the program ip; install iproute2, for example with: apt install iproute2")
        if os.geteuid() != 0:
            raise UserError("--hosts needs root, because it makes network namespaces; use sudo, or omit it")
        if len(sites) > _MOST:
            raise UserError(f"--hosts has at most {_MOST} sites")
        self._sites = {name: number for number, name in enumerate(sites)}
        self._cleanup = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as made:
            for host in (SERVER, *self._sites):
                _ip("netns", "add", self._space(host))
                made.callback(_ip, "netns", "del", self._space(host))
                self._inside(host, "link", "set", "lo", "up")
            self._inside(SERVER, "address", "add", f"{ADDRESS}/32", "dev", "lo")
            for site, number in self._sites.items():
                ends = (SERVER, f"10.77.{number}.1", f"site{number}"), (site, f"10.77.{number}.2", "server")
                (here, _, mine), (there, _, theirs) = ends
                cable = ("netns", self._space(here), "type", "veth", "peer", "name", theirs, "netns")
                _ip("link", "add", mine, *cable, self._space(there))
                for host, address, interface in ends:
                    self._inside(host, "address", "add", f"{address}/24", "dev", interface)
                    self._inside(host, "link", "set", interface, "up")
                self._inside(site, "route", "add", ADDRESS, "via", f"10.77.{number}.1")
            self._cleanup = made.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cleanup.close()

    def on(self, host: str) -> list[str]:
        """Return the beginning of a command that runs on a host."""
        return ["ip", "netns", "exec", self._space(host)]

    def check(self, port: int) -> list[str]:
        """Return sentences about the ports that are open. Raises StoppedError if one is that should not be."""
        inner = sorted(set(self._listening(SERVER)) - {port})
        for site, number in self._sites.items():
            if found := self._listening(site):
                raise StoppedError(f"the site {site} listens on {', '.join(map(str, found))}; a site needs no port")
            places = [f"{host}:{each}" for host in (ADDRESS, f"10.77.{number}.1") for each in (port, *inner)]
            answering = _output([*self.on(site), sys.executable, "-c", _TRY, *places]).split()
            if answering != [f"{ADDRESS}:{port}"]:
                raise StoppedError(f"from the site {site}, these ports answer: {', '.join(answering) or 'none'}")
        others = ", ".join(map(str, inner)) or "none"
        return [
            f"from each site, {ADDRESS}:{port} answers; the other ports of the server ({others}) do not",
            "no site has an open port",
        ]

    def _listening(self, host: str) -> list[int]:
        """Return the TCP ports of a host on which a program waits for connections."""
        lines = _output([*self.on(host), "cat", "/proc/net/tcp", "/proc/net/tcp6"]).splitlines()
        columns = [line.split() for line in lines]
        return sorted({int(each[1].rpartition(":")[2], 16) for each in columns if each[3] == _LISTENING})

    def _inside(self, host: str, *arguments: str) -> None:
        _ip("-n", self._space(host), *arguments)

    def _space(self, host: str) -> str:
        number = "server" if host == SERVER else str(self._sites[host])
        return f"coterie-{os.getpid()}-{number}"


def _ip(*arguments: str) -> None:
    _output(["ip", *arguments])


def _output(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - no input of others
    if done.returncode:
        raise UserError(f"`{' '.join(command[:6])}` failed, so --hosts cannot be used here: {done.stderr.strip()}")
    return done.stdout
