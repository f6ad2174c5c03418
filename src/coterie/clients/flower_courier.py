"""A site's courier: it carries messages between Flower and the site process, and nothing else.

It is a node that speaks Flower's Fleet API to a SuperLink. It has a key and a network connection, but no data and no
PyTorch, and it runs nothing that it is sent. `courier_command` says how to start it. Each line on stdout is an event in
JSON with a sentence in `text`.

Two rules keep a killed courier from costing a round its deadline:

1. A message is on disk before its receipt is confirmed, and stays there until its reply is sent. A courier that finds
   one when it starts returns to the network by a heartbeat, without activating its node, and carries on.
2. A courier that holds no message activates its node when it starts. The server sees the time of the last activation,
   and then asks again what it has asked this node before. The courier does the same after a call in which a message may
   have been lost.
"""

import argparse
import os
import signal
import time
from pathlib import Path
from types import FrameType
from typing import NoReturn

from coterie.clients.flower_fleet import Fleet, LostError, NotAdmittedError, TooLargeError
from coterie.clients.flower_probe import load_key, probe
from coterie.clients.flower_store import Held, Store
from coterie.clients.flower_stub import digest
from coterie.clients.flower_tell import Exit, leave, tell
from coterie.clients.flower_version import check
from coterie.errors import UserError
from coterie.sites.socket import exchange

REFUSED, TOO_LARGE = 11, 12
"""Codes of our own in Flower's error replies."""
POLL = 0.2
"""Seconds between two questions for a message."""


class Courier:
    """The way between one site process and the server."""

    def __init__(self, fleet: Fleet, store: Store, path: Path) -> None:
        self._fleet, self._store, self._path = fleet, store, path
        self._bundles: dict[int, str] = {}

    def work(self) -> NoReturn:
        """Carry messages until this process is stopped."""
        held = self._connect()
        with self._fleet.beating():
            while True:
                try:
                    if held is not None:
                        self._carry(held)
                        self._store.release()
                    held = self._next()
                    if held is None:
                        time.sleep(POLL)
                except LostError as lost:
                    tell("lost", f"asking the server to send again what this site may have lost: {lost}")
                    self._store.release()
                    self._activate()
                    held = None

    def _connect(self) -> Held | None:
        """Return to the network. A message that is on disk is returned, unless it is too late for it."""
        held, node = self._store.held(), self._store.node()
        if held is not None and node is not None and self._fleet.continue_as(node):
            tell("connected", "connected again, and carrying the message that was held")
            return held
        self._store.release()
        self._activate()
        return None

    def _activate(self) -> None:
        last = self._store.node()
        try:
            self._store.set_node(self._fleet.activate(last))
        except NotAdmittedError as error:
            not_admitted(error, last is not None)
        tell("connected", "connected to the server")

    def _next(self) -> Held | None:
        """Return the next message, after it is on disk."""
        if (got := self._fleet.next()) is None:
            return None
        head, tree = got
        if self._bundle(head["run"]) != digest():
            tell("refused run", "refused a run that is not one of Coterie, or of another version", run=head["run"])
            self._fleet.refuse(head, REFUSED, "this run is not one of Coterie, or of another version of it")
            return None
        try:
            held = Held(head, self._fleet.fetch(head, tree))
        except TooLargeError:
            self._fleet.refuse(head, TOO_LARGE, "the request is larger than this site permits")
            return None
        self._store.hold(held)
        self._fleet.confirm(head)
        return held

    def _bundle(self, run: int) -> str:
        """Return the digest of a run's bundle. The bundle itself is never fetched."""
        if run not in self._bundles:
            self._bundles[run] = self._fleet.bundle(run)
        return self._bundles[run]

    def _carry(self, held: Held) -> None:
        """Bring a message to the site process, and its reply to the server."""
        reply = self._ask_site(held)
        if reply is None:
            tell("late", "the site process did not answer in time")
            return
        try:
            self._fleet.reply(held.head, reply)
        except TooLargeError:
            self._fleet.refuse(held.head, TOO_LARGE, "the reply is larger than this site permits")
        else:
            tell("carried", "carried a reply", bytes=len(reply))

    def _ask_site(self, held: Held) -> bytes | None:
        """Return the site process's reply. While there is no such process, wait for it."""
        pause, told = 0.05, False

        def hopeless() -> bool:
            if self._fleet.expelled.is_set():
                raise LostError("the server no longer accepts this node")
            return time.time() > held.until

        while not hopeless():
            try:
                return exchange(self._path, held.content, hopeless)
            except TimeoutError:
                return None
            except (OSError, ValueError) as error:
                if not told:
                    tell("waiting", f"waiting for the site process: {error}")
                told = True
            time.sleep(pause)
            pause = min(2 * pause, 1.0)
        return None


def not_admitted(error: NotAdmittedError, was_connected: bool) -> NoReturn:
    """End this process, because the server does not let this key in."""
    if error.code is None and error.status == 401:
        leave(Exit.WRONG_CLOCK, "the server refused the signature: is this machine's clock right?")
    if error.code is None:
        leave(Exit.NOT_COTERIE, f"this is not a server of Coterie: it answered with status {error.status}")
    if was_connected:
        leave(Exit.REMOVED, "the server no longer accepts this key: it was removed, or another courier uses it")
    leave(Exit.UNKNOWN, "the server does not know this key, or another courier uses it; ask for `coterie sites add`")


def stop(_number: int, _frame: FrameType | None) -> NoReturn:
    """End in order."""
    raise SystemExit(0)


def main() -> None:
    """Connect a site."""
    parser = argparse.ArgumentParser(description="Carry messages between a Coterie server and a site process.")
    parser.add_argument("--server", required=True, help="HOST:PORT")
    parser.add_argument("--key", type=Path, required=True, help="the site's private key")
    security = parser.add_mutually_exclusive_group(required=True)
    security.add_argument("--ca", type=Path, help="certificate of the CA that signed the server's")
    security.add_argument("--insecure", action="store_true", help="without TLS")
    parser.add_argument("--socket", type=Path, required=True, help="socket of the site process")
    parser.add_argument("--state", type=Path, required=True, help="a folder of its own")
    parser.add_argument("--limit", type=int, default=1 << 30, help="largest message in bytes")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    os.umask(0o077)
    try:
        check()
    except UserError as error:
        leave(Exit.WRONG_FLOWER, str(error))
    store, key = Store(args.state), load_key(args.key)
    probe(args.server, args.ca)
    ca = None if args.insecure else args.ca.read_bytes()
    Courier(Fleet(args.server, ca, key, args.limit), store, args.socket).work()


if __name__ == "__main__":
    main()
