"""Campaign `operations`: a kill or a full disk at every single file operation of a run."""

import builtins
import errno
import io
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from attack.campaign import Campaign, Escape
from attack.children import TRACEBACK, Ended, command
from attack.folders import compare, finish, settings, unbroken, warm_up, workspace

METHODS = ("pflego", "fedavg", "scafflix")
ROUNDS, EVERY = 3, 1
"""The third checkpoint deletes the first one."""
KILLED = 137
NEEDS_SPACE = ("open", "write", "fsync", "mkdir")
"""Operations that fail on a full disk."""


STRIDE = 7_919
"""Attempts that follow each other are this far apart, so that a few are spread over all operations."""


class Fault(NamedTuple):
    """What happens at a file operation."""

    kind: str
    """kill, full (that operation and all later ones find no space) or once (only that one)."""
    operation: int
    """Number of the operation, from 0."""


class Faults:
    """Counts the operations on files of a run folder, and lets one fail."""

    def __init__(self, folder: Path, fault: Fault, note: Path | None = None) -> None:
        self.folder, self.fault, self.note = str(folder), fault, note
        self.count = 0
        self.names: list[str] = []

    def install(self) -> None:
        """Replace the functions of this process that change files."""
        for name in ("replace", "rename", "mkdir", "unlink", "remove", "rmdir"):
            setattr(os, name, self._path(name, getattr(os, name)))
        plain_open, plain_fsync, plain_io = os.open, os.fsync, io.open

        def open_file(file: Any, mode: str = "r", *more: Any, **keys: Any) -> Any:
            if not set(mode) & set("wax+") or not self._inside(file):
                return plain_io(file, mode, *more, **keys)
            self._before("open", file)
            return Watched(plain_io(file, mode, *more, **keys), self)

        def open_number(path: Any, flags: int, *more: Any, **keys: Any) -> int:
            if flags & os.O_CREAT and self._inside(path):
                self._before("open", path)
            return plain_open(path, flags, *more, **keys)

        def fsync(number: Any) -> None:
            if self._inside(Path(f"/proc/self/fd/{number if isinstance(number, int) else number.fileno()}").readlink()):
                self._before("fsync")
            plain_fsync(number)

        os.open, os.fsync = open_number, fsync  # type: ignore[assignment]
        io.open = builtins.open = open_file  # type: ignore[assignment]

    def _path(self, name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        def operation(path: Any, *more: Any, **keys: Any) -> Any:
            there = name == "mkdir" and Path(path).is_dir()  # then nothing is done, and an error has no consequence
            if not there and (keys.get("dir_fd") is not None or self._inside(path)):
                self._before(name, path)
            return plain(path, *more, **keys)

        return operation

    def _inside(self, path: Any) -> bool:
        return not isinstance(path, int) and str(path).startswith(self.folder)

    def _before(self, name: str, path: Any = None, torn: Callable[[], object] = lambda: None) -> None:
        """Count an operation. If it is its turn, leave half of a write behind and fail."""
        number, self.count = self.count, self.count + 1
        if self.note:
            with self.note.open("a") as file:
                file.write(f"{name}\n")
        at = self.fault.operation
        if self.fault.kind == "kill" and number == at:
            torn()
            os._exit(KILLED)
        later = self.fault.kind == "full" and number > at
        if self.fault.kind in ("full", "once") and name in NEEDS_SPACE and (number == at or later):
            torn()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), *([str(path)] if path is not None else []))

    def write(self, file: Any, content: Any) -> int:
        """Write to a file, or half of it."""

        def torn() -> None:
            file.write(content[: len(content) // 2])
            file.flush()

        self._before("write", torn=torn)
        return int(file.write(content))


class Watched:
    """A file whose writes are counted."""

    def __init__(self, file: Any, faults: Faults) -> None:
        self._file, self._faults = file, faults

    def write(self, content: Any) -> int:
        """Write, or fail."""
        return self._faults.write(self._file, content)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> "Watched":
        return self

    def __exit__(self, *error: Any) -> None:
        self._file.close()


@cache
def names(method: str) -> tuple[str, ...]:
    """Return the file operations of an undisturbed run, in their order."""
    note, out = workspace() / f"operations-{method}", workspace() / f"watched-{method}"
    if not note.exists():
        ended = command(
            *("run", *settings(method, ROUNDS, EVERY), "--out", out),
            before=Faults(out, Fault("none", -1), note).install,
        )
        assert ended.code == 0, ended.output
    return tuple(note.read_text().splitlines())


@cache
def faults() -> tuple[tuple[str, Fault], ...]:
    """Return every fault: each operation of each method."""
    found = []
    for method in METHODS:
        for place, name in enumerate(names(method)):
            kinds = ("kill", "full", "once") if name in NEEDS_SPACE else ("kill",)
            found += [(method, Fault(kind, place)) for kind in kinds]
    return tuple(found)


def prepare() -> int:
    """Warm up and count the faults."""
    warm_up()
    return len(faults())


def attempt(seed: int, folder: Path) -> str:
    """Let one operation fail, continue the run, and compare."""
    method, fault = faults()[seed * STRIDE % len(faults())]
    expected, _ = unbroken(method, (ROUNDS,), EVERY)
    out, start = folder / expected.name, settings(method, ROUNDS, EVERY)
    ended = command("run", *start, "--out", out, before=Faults(out, fault).install)
    about = f"{method}, {fault.kind} at operation {fault.operation} ({names(method)[fault.operation]})"
    if ended.code == TRACEBACK or "Traceback" in ended.output:
        raise Escape(f"{about}: traceback: {ended.output[-300:].strip()}")
    if fault.kind == "kill" and ended.code != KILLED:
        raise Escape(f"{about}: the operation was not reached, exit code {ended.code}: {ended.output[-200:].strip()}")
    begun = (out / "recipe.toml").exists()
    try:
        finish(out, start, ROUNDS)
        compare(out, expected)
    except Escape as escape:
        raise Escape(f"{about}: {escape}") from None
    if fault.kind != "kill":
        _check_message(about, ended, out, begun)
    return about


def _check_message(about: str, ended: Ended, out: Path, begun: bool) -> None:
    if ended.code == 0:
        raise Escape(f"{about}: the error is ignored, exit code 0")
    words = " ".join(ended.output.split())
    told = words[max(words.rfind("stopped:"), words.rfind("error:"), 0) :]  # without progress bars
    if str(out) not in told:
        raise Escape(f"{about}: the message does not name the path: {told}")
    if begun and "--resume" not in told:
        raise Escape(f"{about}: the message does not say how to continue: {told}")


CAMPAIGN = Campaign(
    "operations",
    "each file operation of a run is killed or finds a full disk: a clear message, and a resume ends in the same files",
    attempt,
    prepare,
    1 << 31,
)
