"""What a site keeps on its own disk for a run: its personal state, before and after a round that may not count yet.

A state is known by the number of the last round that it contains. The `kept` state is the one after the last round that
the server counted. The `pending` state is the one after a local update of which the server has not said yet whether it
counts. It is stored together with the reply, before the reply is sent, so that the same request gets the same reply
without a second step, also after a crash.

    state.json             numbers of the rounds, and the sha256 of all other files; sealed
    SHA256.safetensors     a personal state
    SHA256.reply           a reply
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save

from coterie.core.tree import Tree
from coterie.errors import UserError
from coterie.storage.files import PRIVATE, make_private, packed, unpacked, write_atomically
from coterie.storage.seal import BrokenSealError, read_json, sealed_json

FILE = "state.json"
_KEPT = (".safetensors", ".reply")


@dataclass(frozen=True)
class Pending:
    """A local update of which the server has not said yet whether it counts."""

    round: int
    request: str
    """sha256 of the request."""
    state: str
    """sha256 of the file with the new personal state."""
    reply: str
    """sha256 of the file with the reply."""
    told: dict[str, Any]
    """The round as it was announced, which the method needs once the round counts."""


@dataclass(frozen=True)
class Journal:
    """What is on the disk."""

    round: int
    """Number of the last round that counted and in which the site took part; 0 before the first one."""
    state: str
    """sha256 of the file with the personal state after that round."""
    replies: int = 0
    """Number of replies that the site has made."""
    pending: Pending | None = None


class SiteState:
    """The files of a site for one run. Every change is whole on the disk before a method returns."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        make_private(folder)
        self._journal = self._read()

    @property
    def is_started(self) -> bool:
        """Whether there is a state."""
        return self._journal is not None

    @property
    def journal(self) -> Journal:
        """What is on the disk, once there is a state."""
        assert self._journal is not None
        return self._journal

    def start(self, personal: Tree) -> None:
        """Store the personal state before the first round."""
        sha256 = self._store(personal)
        kept = [path for path in self._folder.iterdir() if path.suffix in _KEPT and path.stem != sha256]
        if kept:
            raise UserError(
                f"{self._folder / FILE} is missing, and there is a state that was stored later. Restore the folder "
                "from a backup; nothing was deleted"
            )
        self._write(Journal(0, sha256))

    def kept(self) -> Tree:
        """Return the personal state after the last round that counted."""
        return self._load(self.journal.state)

    def update(self, pending: Pending) -> Tree:
        """Return the personal state after an update that may not count yet."""
        return self._load(pending.state)

    def reply(self, pending: Pending) -> bytes:
        """Return the reply of an update."""
        return self._content(f"{pending.reply}.reply", pending.reply)

    def store_update(self, index: int, told: dict[str, Any], request: str, personal: Tree, reply: bytes) -> None:
        """Store the result of a local update together with its reply, in place of an earlier one."""
        pending = Pending(index, request, self._store(personal), self._put(reply, ".reply"), told)
        self._write(replace(self.journal, pending=pending, replies=self.journal.replies + 1))

    def keep(self, personal: Tree) -> None:
        """Store the personal state after the pending round, which counts."""
        assert self.journal.pending is not None
        self._write(Journal(self.journal.pending.round, self._store(personal), self.journal.replies))

    def _store(self, personal: Tree) -> str:
        return self._put(save(packed(personal)), ".safetensors")

    def _put(self, content: bytes, suffix: str) -> str:
        sha256 = hashlib.sha256(content).hexdigest()
        write_atomically(self._folder / f"{sha256}{suffix}", content, PRIVATE)
        return sha256

    def _load(self, sha256: str) -> Tree:
        name = f"{sha256}.safetensors"
        try:
            return unpacked(load(self._content(name, sha256)))
        except SafetensorError as error:
            raise UserError(f"{self._folder / name} is damaged: {error}") from None

    def _content(self, name: str, sha256: str) -> bytes:
        try:
            content = (self._folder / name).read_bytes()
        except FileNotFoundError:
            content = b""
        if hashlib.sha256(content).hexdigest() != sha256:
            raise UserError(
                f"{self._folder / name} is missing or damaged, so this site cannot continue with its own state. "
                f"Restore the folder from a backup. Without one, remove {self._folder} and use `coterie client "
                "--restored` to continue with a new state"
            )
        return content

    def _read(self) -> Journal | None:
        file = self._folder / FILE
        if not file.exists():
            return None
        try:
            tree = read_json(file.read_bytes())
            pending = tree.pop("pending")
            return Journal(**tree, pending=Pending(**pending) if pending else None)
        except (BrokenSealError, TypeError, KeyError, json.JSONDecodeError) as error:
            raise UserError(
                f"{file} is damaged ({error}), so this site cannot continue with its own state. Restore the folder "
                f"from a backup. Without one, remove {self._folder} and use `coterie client --restored` to continue "
                "with a new state"
            ) from None

    def _write(self, journal: Journal) -> None:
        pending = journal.pending
        tree = {**vars(journal), "pending": vars(pending) if pending else None}
        write_atomically(self._folder / FILE, sealed_json(tree), PRIVATE)
        self._journal = journal
        self._tidy(f"{journal.state}.safetensors", *_files(pending))

    def _tidy(self, *needed: str) -> None:
        for path in self._folder.iterdir():
            if path.suffix in (*_KEPT, ".partial") and path.name not in needed:
                path.unlink()


def _files(pending: Pending | None) -> Iterable[str]:
    return (f"{pending.state}.safetensors", f"{pending.reply}.reply") if pending else ()
