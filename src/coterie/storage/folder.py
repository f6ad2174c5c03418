"""The folder of a run.

recipe.toml             the value of every setting
rounds.jsonl            a record of each round
clients.csv             figures of each client
summary.json            figures of the run; it exists only if the run has finished
report.html             a page about the run
commands.jsonl          when and by which commands the run was started and resumed, for people
checkpoint/             what the run continues from, and models

Files that a program reads are sealed (see `seal`), and what their seals do not cover has its sha256 in another file.
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
from tomllib import TOMLDecodeError
from typing import Any

from filelock import FileLock, Timeout

from coterie.errors import DiskError, UserError
from coterie.measure.record import Record
from coterie.measure.summary import Summary
from coterie.storage.files import naming, write_atomically
from coterie.storage.seal import (
    BrokenSealError,
    file_digest,
    read_json,
    read_line,
    read_toml,
    sealed_json,
    sealed_line,
    sealed_toml,
)

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
RECIPE, ROUNDS, CLIENTS, SUMMARY = "recipe.toml", "rounds.jsonl", "clients.csv", "summary.json"
FILES = "files"
"""Key of the digest of clients.csv in summary.json."""
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Characters with which a cell begins that a spreadsheet would compute."""


class RunFolder:
    """The folder of a run, locked by one process at a time. A run overwrites only its own files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._last = ""
        """Digest of the last line of rounds.jsonl."""
        self._lock = FileLock(path / ".lock")
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise UserError(f"{path} is in use by another process; wait for it or stop it") from None
        except OSError as error:
            raise UserError(f"cannot write to the folder {path}: {error.strerror}") from None

    @classmethod
    def create(cls, path: Path, recipe: dict[str, Any]) -> "RunFolder":
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
        folder = cls(path)
        with folder.writing():
            folder.rounds.touch()
            write_atomically(path / RECIPE, sealed_toml(recipe))
        return folder

    @classmethod
    def reopen(cls, path: Path, recipe: dict[str, Any]) -> "RunFolder":
        """Lock the folder of a run to resume it. The recipe must be the same, but may have more rounds."""
        there = read_recipe(path)
        rounds = there.get("run", {}).get("rounds", 0)
        longer = recipe["run"]["rounds"] > rounds
        alike = {**recipe, "run": {**recipe["run"], "rounds": rounds}} if longer else recipe
        if difference := first_difference(there, alike):
            raise UserError(
                f"{path / RECIPE} differs from this recipe at {difference}; resume with the same recipe, or "
                "with more rounds"
            )
        folder = cls(path)
        for partial in path.glob(".*.partial"):  # a killed run left it behind
            partial.unlink()
        return folder

    def lengthen(self, recipe: dict[str, Any]) -> None:
        """Store the recipe if it has more rounds than before. The run then no longer counts as finished."""
        if recipe["run"]["rounds"] > read_recipe(self.path)["run"]["rounds"]:
            (self.path / SUMMARY).unlink(missing_ok=True)
            write_atomically(self.path / RECIPE, sealed_toml(recipe))

    @property
    def rounds(self) -> Path:
        """Path of rounds.jsonl."""
        return self.path / ROUNDS

    @property
    def checkpoints(self) -> Path:
        """Path of the folder with checkpoints."""
        return self.path / "checkpoint"

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Turn an OSError into a DiskError, which names the file and says how to continue."""
        try:
            yield
        except OSError as error:
            again = "run the same command again"
            if (self.path / RECIPE).exists():
                again = f"continue with `coterie run --resume {shlex.quote(str(self.path))}` (in Python: resume=True)"
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
        return self.rounds.read_bytes().count(b"\n")

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
        history, self._last = _records(self.rounds, lines)
        write_atomically(self.rounds, b"".join(line + b"\n" for line in lines))
        return history

    def finish(self, summary: Summary, clients: list[dict[str, Any]]) -> None:
        """Write clients.csv and summary.json."""
        rows = io.StringIO()
        writer = csv.DictWriter(rows, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows({**row, "client": _as_text(row["client"])} for row in clients)
        files = {CLIENTS: write_atomically(self.path / CLIENTS, rows.getvalue().encode())}
        write_atomically(self.path / SUMMARY, sealed_json({**summary.to_json(), FILES: files}))

    def write_page(self, page: str) -> None:
        """Write report.html."""
        write_atomically(self.path / "report.html", page.encode())

    def close(self) -> None:
        """Unlock the folder."""
        self._lock.release()


def read_recipe(path: Path) -> dict[str, Any]:
    """Read the recipe of a run folder, with the value of every setting."""
    file = path / RECIPE
    if not file.exists() or not (path / ROUNDS).exists():
        raise UserError(f"{path} is not the folder of a run: recipe.toml or rounds.jsonl is missing")
    try:
        return read_toml(file.read_bytes())
    except BrokenSealError:
        raise UserError(
            f"{file} differs from what this run wrote: it was edited or damaged, or it is from an earlier version of "
            f"Coterie. Restore it to resume or load the run; to train with other settings, start a new run: "
            f"coterie run {shlex.quote(str(file))}"
        ) from None
    except (TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{file} is damaged: {error}") from None


def read_history(path: Path, index: int) -> list[Record]:
    """Return the records of a run up to a round."""
    file = path / ROUNDS
    return _records(file, _lines(file, index))[0]


def read_summary(path: Path) -> Summary | None:
    """Return the summary of a run, or None if it has not finished."""
    return Summary.from_json(_summary(path)) if (path / SUMMARY).exists() else None


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of clients.csv; none if the run has not finished."""
    if not (path / SUMMARY).exists():
        return []
    file = path / CLIENTS
    if not file.exists() or file_digest(file) != _summary(path)[FILES][CLIENTS]:
        raise UserError(f"{file} is missing or damaged: its sha256 differs from the one in {SUMMARY}")
    with file.open(newline="") as opened:
        rows: list[dict[str, Any]] = list(csv.DictReader(opened))
    for row in rows:
        row["client"] = row["client"][_is_marked(row["client"]) :]
        row |= {name: int(row[name]) for name in ("train_examples", "test_examples", "visits")}
        row |= {name: float(row[name]) for name in ("accuracy", "restricted", "adapted", "adapted_restricted")}
    return rows


def _summary(path: Path) -> dict[str, Any]:
    try:
        return read_json((path / SUMMARY).read_bytes())
    except BrokenSealError as error:
        raise UserError(f"{path / SUMMARY} is damaged: {error}. Resume the run to write it again") from None


def _is_free(path: Path) -> bool:
    """Return whether a run can be created in a folder: it is empty, or a run was killed there before it had begun."""
    if not path.is_dir() or {file.name for file in path.iterdir()} - {".lock", ROUNDS, f".{RECIPE}.partial"}:
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


def _records(file: Path, lines: Sequence[bytes]) -> tuple[list[Record], str]:
    """Return the records, and the digest of the last one."""
    records, last = [], ""
    for number, line in enumerate(lines, 1):
        try:
            tree, last = read_line(line, last)
        except BrokenSealError:
            raise UserError(
                f"{file} differs from what this run wrote: line {number} or the one before it was changed, or the file "
                "is from an earlier version of Coterie. Restore it, or start the run again in another folder"
            ) from None
        records.append(Record.from_json(tree))
    return records, last


def first_difference(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> str:
    """Return the first key at which two recipes differ, with both values, or an empty string if they are equal."""
    for key in sorted(old.keys() | new.keys()):
        mine, other = old.get(key), new.get(key)
        if isinstance(mine, dict) and isinstance(other, dict):
            if inner := first_difference(mine, other, f"{prefix}{key}."):
                return inner
        elif mine != other:
            return f"{prefix}{key} ({mine!r} there, {other!r} here)"
    return ""
