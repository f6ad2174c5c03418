"""The folder of a courier: its lock, its node id and the message that it holds."""

import fcntl
import json
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

from coterie.clients.flower_tell import Exit, leave, tell

PAUSE = 1.0
"""Seconds before a file that could not be written is tried again."""


class Held(NamedTuple):
    """A message that is being carried."""

    head: dict[str, Any]
    content: bytes

    @property
    def until(self) -> float:
        """Time at which nobody waits for the reply any more, by this machine's clock."""
        return float(self.head["received"] + self.head["ttl"])


class Store:
    """The folder of a courier: its lock, its node id and the message that it holds."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder = folder
        self._lock = (folder / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            leave(Exit.IN_USE, f"another courier uses {folder} already; end it first")

    def node(self) -> int | None:
        """Return the id that the SuperLink gave this node last."""
        try:
            return int((self._folder / "node").read_text())
        except (FileNotFoundError, ValueError):
            return None

    def set_node(self, node: int) -> None:
        """Keep the id of this node."""
        self._write("node", str(node).encode())

    def held(self) -> Held | None:
        """Return the message that was being carried when this courier ended, if somebody still waits for its reply."""
        try:
            head, _, content = (self._folder / "held").read_bytes().partition(b"\n")
            found = Held(json.loads(head), content)
        except (FileNotFoundError, ValueError):
            return None
        return found if found.until > time.time() else None

    def hold(self, held: Held) -> None:
        """Keep a message until `release`."""
        self._write("held", json.dumps(held.head).encode() + b"\n" + held.content)

    def release(self) -> None:
        """Forget the message."""
        (self._folder / "held").unlink(missing_ok=True)

    def _write(self, name: str, content: bytes) -> None:
        """Write a file. While the disk is full, wait: nothing was confirmed yet, so nothing is lost."""
        told = False
        while True:
            try:
                return self._write_once(name, content)
            except OSError as error:
                if not told:
                    tell("waiting", f"cannot write {self._folder / name}: {error.strerror}; trying again")
                told = True
            time.sleep(PAUSE)

    def _write_once(self, name: str, content: bytes) -> None:
        new = self._folder / f"{name}.new"
        with new.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        new.replace(self._folder / name)
        folder = os.open(self._folder, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
