"""How to start a site's courier, and what its exit codes mean. Does not import Flower."""

import os
import sys
from pathlib import Path

CHILD = Path(__file__).with_name("flower_child.py")
COURIER = Path(__file__).with_name("flower_courier.py")
EXITS = {
    0: "The courier was stopped.",
    10: "The server does not know this site's key, or another courier uses it. Ask the server to add the key.",
    11: "The server no longer accepts this site's key: it was removed, or another courier uses it.",
    12: "The server's certificate is not signed by the given CA. Ask the server for its ca.crt.",
    13: "The server's certificate has expired, or is not valid yet. Check the clocks, or ask for a new certificate.",
    14: "The server's certificate is for another name. Use the name or address for which it was made.",
    15: "The server does not use TLS. Check the address, or use --insecure if it is on this machine.",
    16: "The server uses TLS. Give its CA certificate instead of --insecure.",
    17: "Another courier uses the same state folder.",
    18: "The key or the CA certificate cannot be read.",
    19: "Another version of Flower is installed than the one that real sites need.",
    20: "The address is not that of a Coterie server.",
    21: "The server refused the signature. Check this machine's clock.",
}
"""What each exit code of a courier means. After these, it does not help to start it again without a change. After any
other code, and after a signal, start it again."""


def courier_command(
    server: str, key: Path, socket: Path, state: Path, ca: Path | None, limit: int | None = None
) -> list[str]:
    """Return the command that starts a courier as a child of this process. Without `ca`, it does not use TLS.

    The courier ends when this process ends. On Linux, it also ends with the thread that starts it, so start it in one
    that stays. `socket` is where the site process serves, and `state` a folder of the courier's own.
    """
    security = ["--insecure"] if ca is None else ["--ca", str(ca)]
    size = [] if limit is None else ["--limit", str(limit)]
    start = [sys.executable, "-I", str(CHILD), str(os.getpid()), str(COURIER), "--server", server, "--key", str(key)]
    return [*start, *security, "--socket", str(socket), "--state", str(state), *size]
