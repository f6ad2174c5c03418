"""The folder of a run.

recipe.toml             the value of every setting (see `origin`)
rounds.jsonl            a record of each round
clients.csv             figures of each client
summary.json            figures of the run; it exists only if the run has finished
report.html             a page about the run
commands.jsonl          when and by which commands the run was started and resumed, for people
checkpoint/             what the run continues from, and models

Files that a program reads are sealed (see `seal`), and what their seals do not cover has its sha256 in another file.
Each of them also has the identity of the run (see `origin`).
"""

import csv
import io
import json
import os
import platform
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from coterie.errors import DiskError, UserError
from coterie.measure.record import Record
from coterie.measure.summary import Summary
from coterie.storage.files import delete_file, naming, write_atomically
from coterie.storage.origin import RECIPE, ROUNDS, RUN, Origin, ends_later, read_origin
from coterie.storage.seal import BrokenSealError, file_digest, read_json, read_line, sealed_json, sealed_line

COLUMNS = (
    "client",
    "role",
    "classes",
    "train_examples",
    "test_examples",
    "visits",
    "accuracy",
    "restricted",
    "adapted",
    "adapted_restricted",
)
"""Columns of clients.csv. The header is written even if no client is left."""
CLIENTS, SUMMARY, CHECKPOINTS = "clients.csv", "summary.json", "checkpoint"
SERVER = "server"
"""Folder of the server of real sites, with what it sends and receives. It exists before the run begins."""
FILES = "files"
"""Key of the digest of clients.csv in summary.json."""
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Characters with which a cell begins that a spreadsheet would compute."""


class RunFolder:
    """The folder of a run, locked by one process at a time. A run overwrites only its own files."""

    def __init__(self, path: Path, run: str) -> None:
        self.path = path
        self.run = run
        """Identity of the run."""
        self._last = run
        """Digest of the last line of rounds.jsonl; at first, the identity of the run."""
        self._lock = FileLock(path / ".lock")
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise UserError(f"{path} is in use by another process; wait for it or stop it") from None
        except OSError as error:
            raise UserError(f"cannot write to the folder {path}: {error.strerror}") from None

    @classmethod
    def create(cls, path: Path, origin: Origin) -> "RunFolder":
        """Create and lock the folder of a new run."""
        try:
            if (path / RECIPE).exists():
                raise UserError(
                    f"{path} already holds a run; choose another --out, or continue it with --resume {path}"
                )
            if path.exists() and not _is_free(path):
                raise UserError(f"{path} exists and is not an empty folder; choose another --out")
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot create the folder {path}: {error.strerror}") from None
        folder = cls(path, origin.run)
        with folder.writing():
            folder.rounds.touch()
            origin.write(path)
        return folder

    @classmethod
    def reopen(cls, path: Path, origin: Origin) -> "RunFolder":
        """Lock the folder of a run to resume it. The origin must be the same, but may end later."""
        origin.check_resumed(path)
        folder = cls(path, origin.run)
        try:
            for partial in path.glob(".*.partial"):  # a killed run left it behind
                delete_file(partial)
        except UserError:
            folder.close()
            raise
        return folder

    def lengthen(self, origin: Origin) -> None:
        """Store the recipe if it ends later than before. The run then no longer counts as finished."""
        if ends_later(origin.recipe, read_origin(self.path).recipe):
            (self.path / SUMMARY).unlink(missing_ok=True)
            origin.write(self.path)

    @property
    def rounds(self) -> Path:
        """Path of rounds.jsonl."""
        return self.path / ROUNDS

    @property
    def checkpoints(self) -> Path:
        """Path of the folder with checkpoints."""
        return self.path / CHECKPOINTS

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Turn an OSError into a DiskError, which names the file and says how to continue."""
        try:
            yield
        except OSError as error:
            again = "run the same command again"
            if (self.path / RECIPE).exists():
                command = "server" if (self.path / SERVER).exists() else "run"
                again = f"continue with `coterie {command} --resume {shlex.quote(str(self.path))}`"
                again += " (in Python: resume=True)" if command == "run" else " and its other options"
            raise DiskError(
                f"cannot write {error.filename or self.path}: {error.strerror or error}. What was written before is "
                f"intact. Make room or repair the disk, then {again}"
            ) from error

    def note_command(self) -> None:
        """Add the time, the command and the versions in use to commands.jsonl."""
        facts = {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": shlex.join(sys.argv),
            "coterie": version("coterie"),
            "torch": version("torch"),
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.machine()}",
        }
        _append(self.path / "commands.jsonl", json.dumps(facts).encode())

    def num_records(self) -> int:
        """Return the number of rounds in rounds.jsonl."""
        return _num_records(self.path)

    def append(self, record: Record) -> None:
        """Add a round to rounds.jsonl."""
        line, self._last = sealed_line(record.to_json(), self._last)
        _append(self.rounds, line)

    def sync(self) -> None:
        """Wait until all records are on the disk. Call it before writing a checkpoint."""
        with naming(self.rounds), self.rounds.open("a") as file:
            os.fsync(file.fileno())

    def rewind(self, index: int) -> list[Record]:
        """Drop everything after the round that a run resumes at, including a half-written line."""
        lines = _lines(self.rounds, index)
        history, self._last = _records(self.rounds, lines, self.run)
        write_atomically(self.rounds, b"".join(line + b"\n" for line in lines))
        return history

    def finish(self, summary: Summary, clients: list[dict[str, Any]]) -> None:
        """Write clients.csv and summary.json."""
        rows = io.StringIO()
        writer = csv.DictWriter(rows, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows({**row, "client": _as_text(row["client"])} for row in clients)
        files = {CLIENTS: write_atomically(self.path / CLIENTS, rows.getvalue().encode())}
        write_atomically(self.path / SUMMARY, sealed_json({**summary.to_json(), RUN: self.run, FILES: files}))

    def write_page(self, page: str) -> None:
        """Write report.html."""
        write_atomically(self.path / "report.html", page.encode())

    def close(self) -> None:
        """Unlock the folder."""
        self._lock.release()


def check_not_lost(path: Path, checkpoint_every: int) -> None:
    """Raise UserError if a folder without checkpoints must have had one, so that its run cannot be resumed either."""
    if _num_records(path) > checkpoint_every:
        raise UserError(
            f"{path / CHECKPOINTS} is gone, without which the run has no models and cannot be resumed; copy it from "
            "where the run was, or start the run again in another folder"
        )


def read_history(path: Path, index: int) -> list[Record]:
    """Return the records of a run up to a round."""
    file = path / ROUNDS
    return _records(file, _lines(file, index), read_origin(path).run)[0]


def read_summary(path: Path) -> Summary | None:
    """Return the summary of a run, or None if it has not finished."""
    return Summary.from_json(_summary(path)) if (path / SUMMARY).exists() else None


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of clients.csv; none if the run has not finished."""
    if not (path / SUMMARY).exists():
        return []
    file = path / CLIENTS
    if not file.exists() or file_digest(file) != _summary(path)[FILES][CLIENTS]:
        raise UserError(f"{file} is missing or damaged. Resume the run to write it again")
    with file.open(newline="") as opened:
        rows: list[dict[str, Any]] = list(csv.DictReader(opened))
    for row in rows:
        row["client"] = row["client"][_is_marked(row["client"]) :]
        row |= {name: int(row[name]) for name in ("train_examples", "test_examples", "visits")}
        row |= {name: float(row[name]) for name in ("accuracy", "restricted", "adapted", "adapted_restricted")}
    return rows


def _summary(path: Path) -> dict[str, Any]:
    origin = read_origin(path)
    try:
        tree = read_json((path / SUMMARY).read_bytes())
    except BrokenSealError as error:
        raise UserError(f"{path / SUMMARY} is damaged: {error}. Resume the run to write it again") from None
    stop = tree.get("stop") or {}
    stopped = stop.get("stopped") and stop["patience"] == origin.recipe.get("stop", {}).get("patience")
    if tree.get(RUN) != origin.run or not (stopped or tree["rounds"] == origin.recipe["run"]["rounds"]):
        raise UserError(f"{path / SUMMARY} belongs to another run than {RECIPE}. Resume the run to write it again")
    return tree


def _num_records(path: Path) -> int:
    return (path / ROUNDS).read_bytes().count(b"\n")


def _is_free(path: Path) -> bool:
    """Return whether a run can be created in a folder: it is empty, or a run was killed there before it had begun."""
    if not path.is_dir() or {file.name for file in path.iterdir()} - {".lock", ROUNDS, f".{RECIPE}.partial", SERVER}:
        return False
    return not (path / ROUNDS).exists() or (path / ROUNDS).stat().st_size == 0


def _append(path: Path, line: bytes) -> None:
    with naming(path), path.open("ab") as file:
        file.write(line + b"\n")


def _as_text(name: str) -> str:
    """Mark a name that a spreadsheet would compute as text, by an apostrophe."""
    return f"'{name}" if name.lstrip("'").startswith(FORMULA) else name


def _is_marked(name: str) -> bool:
    return name.startswith("'") and name.lstrip("'").startswith(FORMULA)


def _lines(file: Path, index: int) -> list[bytes]:
    lines = file.read_bytes().split(b"\n")[:-1][:index] if file.exists() else []
    if len(lines) < index:
        raise UserError(f"{file} ends before round {index}, the round of the checkpoint; the folder is damaged")
    return lines


def _records(file: Path, lines: Sequence[bytes], run: str) -> tuple[list[Record], str]:
    """Return the records of a run, and the digest of the last one."""
    records, last = [], run
    for number, line in enumerate(lines, 1):
        try:
            tree, last = read_line(line, last)
        except BrokenSealError:
            changed = "line 1 was changed, the file belongs to another run than recipe.toml"
            if number > 1:
                changed = f"line {number} or the one before it was changed"
            raise UserError(
                f"{file} differs from what this run wrote: {changed}, or the file is from an earlier version of "
                "Coterie. Restore it, or start the run again in another folder"
            ) from None
        records.append(Record.from_json(tree))
    return records, last
