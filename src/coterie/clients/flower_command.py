"""How to start a site's courier. Does not import Flower."""

import os
import sys
from pathlib import Path

CHILD = Path(__file__).with_name("flower_child.py")
COURIER = "coterie.clients.flower_courier"


def courier_command(
    server: str, key: Path, socket: Path, state: Path, ca: Path | None, limit: int | None = None
) -> list[str]:
    """Return the command that starts a courier as a child of this process. Without `ca`, it does not use TLS.

    `socket` is where the site process serves, and `state` a folder of the courier's own. The courier ends when this
    process ends. On Linux, it also ends with the thread that starts it, so start it in one that stays. `EXITS` in
    `flower_tell.py` says what its exit codes mean.
    """
    security = ["--insecure"] if ca is None else ["--ca", str(ca)]
    size = [] if limit is None else ["--limit", str(limit)]
    places = ["--key", str(key), "--socket", str(socket), "--state", str(state)]
    return child_command(COURIER, "--server", server, *places, *security, *size)


def child_command(target: str, *arguments: str) -> list[str]:
    """Return the command of a process that ends with this one."""
    return [sys.executable, "-I", str(CHILD), str(os.getpid()), target, *arguments]
