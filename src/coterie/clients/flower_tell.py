"""How a courier tells what happens, and why it ends."""

import json
from enum import IntEnum
from typing import Any, NoReturn


class Exit(IntEnum):
    """Exit codes of a courier. After these, it does not help to start it again without a change."""

    STOPPED = 0
    UNKNOWN = 10
    REMOVED = 11
    WRONG_CA = 12
    EXPIRED = 13
    WRONG_NAME = 14
    NO_TLS = 15
    NEEDS_TLS = 16
    IN_USE = 17
    BAD_FILE = 18
    WRONG_FLOWER = 19
    NOT_COTERIE = 20
    WRONG_CLOCK = 21


EXITS: dict[int, str] = {
    Exit.STOPPED: "The courier was stopped.",
    Exit.UNKNOWN: "The server does not know this site's key, or another courier uses it. Ask for it to be added.",
    Exit.REMOVED: "The server no longer accepts this site's key: it was removed, or another courier uses it.",
    Exit.WRONG_CA: "The server's certificate is not signed by the given CA. Ask the server for its ca.crt.",
    Exit.EXPIRED: "The server's certificate has expired, or is not valid yet. Check the clocks, or ask for a new one.",
    Exit.WRONG_NAME: "The server's certificate is for another name. Use the name or address for which it was made.",
    Exit.NO_TLS: "The server does not use TLS. Check the address, or use --insecure if it is on this machine.",
    Exit.NEEDS_TLS: "The server uses TLS. Give its CA certificate instead of --insecure.",
    Exit.IN_USE: "Another courier uses the same state folder.",
    Exit.BAD_FILE: "The key or the CA certificate cannot be read.",
    Exit.WRONG_FLOWER: "Flower is missing, or another version is installed than the one that real sites need.",
    Exit.NOT_COTERIE: "The address is not that of a Coterie server.",
    Exit.WRONG_CLOCK: "The server refused the signature. Check this machine's clock.",
}
"""What each exit code means. After any other code, and after a signal, start the courier again."""


def tell(event: str, text: str, **values: Any) -> None:
    """Write an event to stdout."""
    print(json.dumps({"event": event, "text": text, **values}), flush=True)


def leave(code: Exit, text: str) -> NoReturn:
    """End this process with a reason that does not go away by itself."""
    tell("refused", text, code=int(code))
    raise SystemExit(int(code))
