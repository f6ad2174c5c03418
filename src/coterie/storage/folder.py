"""The folder of a run: recipe.toml, rounds.jsonl, clients.csv, summary.json, report.html and checkpoint/."""

import csv
import io
import json
import os
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomli_w
from filelock import FileLock, Timeout

from coterie.errors import UserError
from coterie.measure.record import Record
from coterie.measure.summary import Summary
from coterie.storage.files import write_atomically

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


class RunFolder:
    """The folder of a run, locked by one process at a time. A run overwrites only its own files."""

    def __init__(self, path: Path) -> None:
        self.path = path
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
            if (path / "recipe.toml").exists():
                raise UserError(
                    f"{path} already holds a run; choose another --out, or continue it with --resume {path}"
                )
            if path.exists() and (not path.is_dir() or {file.name for file in path.iterdir()} - {".lock"}):
                raise UserError(f"{path} exists and is not an empty folder; choose another --out")
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot create the folder {path}: {error.strerror}") from None
        folder = cls(path)
        folder.rounds.touch()
        write_atomically(path / "recipe.toml", tomli_w.dumps(recipe).encode())
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
                f"{path / 'recipe.toml'} differs from this recipe at {difference}; resume with the same recipe, or "
                "with more rounds"
            )
        return cls(path)

    def lengthen(self, recipe: dict[str, Any]) -> None:
        """Store the recipe if it has more rounds than before. The run then no longer counts as finished."""
        if recipe["run"]["rounds"] > read_recipe(self.path)["run"]["rounds"]:
            (self.path / "summary.json").unlink(missing_ok=True)
            write_atomically(self.path / "recipe.toml", tomli_w.dumps(recipe).encode())

    @property
    def rounds(self) -> Path:
        """Path of rounds.jsonl."""
        return self.path / "rounds.jsonl"

    @property
    def checkpoints(self) -> Path:
        """Path of the folder with checkpoints."""
        return self.path / "checkpoint"

    def num_records(self) -> int:
        """Return the number of rounds in rounds.jsonl."""
        return self.rounds.read_bytes().count(b"\n")

    def append(self, record: Record) -> None:
        """Add a round to rounds.jsonl."""
        with self.rounds.open("a") as file:
            file.write(json.dumps(record.to_json()) + "\n")

    def sync(self) -> None:
        """Wait until all records are on the disk. Call it before writing a checkpoint."""
        with self.rounds.open("a") as file:
            os.fsync(file.fileno())

    def rewind(self, index: int) -> list[Record]:
        """Drop everything after the round that a run resumes at, including a half-written line."""
        lines = _lines(self.rounds, index)
        history = _records(self.rounds, lines)
        write_atomically(self.rounds, "".join(line + "\n" for line in lines).encode())
        return history

    def finish(self, summary: Summary, clients: list[dict[str, Any]], page: str) -> None:
        """Write clients.csv, report.html and summary.json."""
        rows = io.StringIO()
        writer = csv.DictWriter(rows, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(clients)
        write_atomically(self.path / "clients.csv", rows.getvalue().encode())
        write_atomically(self.path / "report.html", page.encode())
        write_atomically(self.path / "summary.json", (json.dumps(summary.to_json(), indent=2) + "\n").encode())

    def close(self) -> None:
        """Unlock the folder."""
        self._lock.release()


def read_recipe(path: Path) -> dict[str, Any]:
    """Read the recipe of a run folder, with the value of every setting."""
    file = path / "recipe.toml"
    if not file.exists() or not (path / "rounds.jsonl").exists():
        raise UserError(f"{path} is not the folder of a run: recipe.toml or rounds.jsonl is missing")
    try:
        return tomllib.loads(file.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{file} is damaged: {error}") from None


def read_history(path: Path, index: int) -> list[Record]:
    """Return the records of a run up to a round."""
    file = path / "rounds.jsonl"
    return _records(file, _lines(file, index))


def read_summary(path: Path) -> Summary | None:
    """Return the summary of a run, or None if it has not finished."""
    file = path / "summary.json"
    if not file.exists():
        return None
    try:
        return Summary.from_json(json.loads(file.read_text()))
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file} is damaged: {error}") from None


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of clients.csv; none if the run has not finished."""
    file = path / "clients.csv"
    if not file.exists():
        return []
    with file.open(newline="") as opened:
        rows: list[dict[str, Any]] = list(csv.DictReader(opened))
    for row in rows:
        row |= {name: int(row[name]) for name in ("train_examples", "test_examples", "visits")}
        row |= {name: float(row[name]) for name in ("accuracy", "restricted", "adapted", "adapted_restricted")}
    return rows


def _lines(file: Path, index: int) -> list[str]:
    lines = file.read_text().splitlines()[:index] if file.exists() else []
    if len(lines) < index:
        raise UserError(f"{file} ends before round {index}, the round of the checkpoint; the folder is damaged")
    return lines


def _records(file: Path, lines: Sequence[str]) -> list[Record]:
    try:
        return [Record.from_json(json.loads(line)) for line in lines]
    except (json.JSONDecodeError, KeyError) as error:
        raise UserError(f"{file} is damaged: {error}") from None


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
