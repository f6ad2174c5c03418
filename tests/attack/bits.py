"""Campaign `bits`: run folders with damage, or with files of another run.

A reader is told, or sees what was there before.
"""

import hashlib
import logging
import os
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from torch import Tensor

import coterie
from attack.campaign import Campaign, Escape
from attack.children import command
from attack.damage import Damage, Swap, damages, swaps
from attack.folders import settings, unbroken, warm_up, workspace
from coterie.errors import UserError

Seen = dict[str, str]
"""What a reader of a folder sees, by part."""
STRIDE = 1_000_003
"""Attempts that follow each other are this far apart, so that a few are spread over all files."""


class _Stopped(Exception):
    """A resumed run has read its folder."""


class Views(NamedTuple):
    """What a reader may see: the state of the newest checkpoint or, with a warning, that of the one before."""

    newest: Seen
    older: Seen | None


def loaded(folder: Path, rounds: int) -> Seen:
    """Return what `coterie.load` sees."""
    run = coterie.load(folder)
    return {
        "shared": _digest(run.shared),
        "personal": _digest({name: _personal(run, name) for name in run.ids}),
        "classes": _digest({name: run.classes(name) for name in run.ids}),
        "models": _digest({name: str(_model(run, name)) for name in run.ids}),
        "history": _digest([record.to_json() for record in run.history]),
        "summary": _digest(run._summary and run._summary.to_json()),
        "rows": _digest(run.clients()),
        "announcement": _digest(run._announcement.to_json()),
        "steps": _digest(run._adapt_steps),
    }


def _personal(run: coterie.Run, client: str) -> Any:
    try:
        return run.personal(client)
    except UserError:
        return "refused"


def _model(run: coterie.Run, client: str) -> Any:
    try:
        return run.model(client)
    except UserError:
        return "refused"


def resumed(folder: Path, rounds: int) -> Seen:
    """Return the state in which `coterie run --resume` starts. All later rounds follow from it."""
    from coterie.cli import run as command_run
    from coterie.training import Training

    found: Seen = {}

    def play(self: Any, *_: Any) -> None:
        self._folder.close()
        found.update(_state(self))
        raise _Stopped

    changes = [f"run.rounds={rounds}"] if rounds else []
    quick = patch.object(os, "fsync", lambda _: None)
    with quick, patch.object(Training, "play", play), patch.object(command_run, "on_interrupt", list):
        try:
            command_run.run(resume=folder, changes=changes, as_json=True)
        except _Stopped:
            return found
    raise Escape("the resumed run did not start")


def _state(training: Any) -> Seen:
    clients, rounds = training.clients, training.rounds
    return {
        "recipe": _digest(training.recipe.as_dict()),
        "recipe.toml": _digest((training._folder.path / "recipe.toml").read_bytes()),
        "shared": _digest(rounds.shared),
        "memory": _digest(rounds.memory),
        "personal": _digest([clients.personal(client) for client in range(len(clients.ids))]),
        "history": _digest([record.to_json() for record in rounds.history]),
        "announcement": _digest(training.announcement.to_json()),
    }


def _digest(value: Any) -> str:
    total = hashlib.sha256()
    _feed(total.update, value)
    return total.hexdigest()


def _feed(update: Callable[[bytes], object], value: Any) -> None:
    if isinstance(value, dict):
        for key, inner in value.items():
            update(repr(key).encode())
            _feed(update, inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            _feed(update, inner)
            update(b",")
    elif isinstance(value, Tensor):
        update(f"{value.dtype}{tuple(value.shape)}".encode() + value.detach().contiguous().numpy().tobytes())
    else:
        update(repr(value).encode())


def reported(folder: Path, rounds: int) -> Seen:
    """Return what tables of a paper's experiments see in a run. They read finished runs only."""
    from coterie.lab.papers.measured import figures_of, is_finished

    return {"figures": repr(figures_of(folder, "as_is"))} if is_finished(folder) else {}


READERS = {"coterie.load": loaded, "coterie reproduce": reported, "coterie run --resume": resumed}


@cache
def folders() -> dict[str, Path]:
    """Return a finished run, and one that was killed after the round that follows its second checkpoint."""
    ready = workspace() / "damaged"
    if not ready.exists():
        ready.mkdir()
        shutil.copytree(unbroken("pflego", (3,), 1)[0], ready / "finished")
        ended = command("run", *settings("ditto", 6, 2), "--out", ready / "killed", before=lambda: _end_after(5))
        assert ended.code == 137, ended.output
        for folder in ready.iterdir():
            (folder / "report.html").unlink(missing_ok=True)  # nobody reads it but people
            (folder / ".lock").unlink(missing_ok=True)
    return {folder.name: folder for folder in sorted(ready.iterdir())}


def _end_after(rounds: int) -> None:
    from coterie.storage.folder import RunFolder

    plain = RunFolder.append

    def append(self: RunFolder, record: Any) -> None:
        plain(self, record)
        if record.round == rounds:
            os._exit(137)

    RunFolder.append = append  # type: ignore[method-assign]


@cache
def views(name: str, reader: str, rounds: int) -> Views:
    """Return what a reader sees in a folder that is not damaged, and without its newest checkpoint."""
    folder = workspace() / f"seen-{name}-{os.getpid()}"
    found = []
    for lost in (0, 1):
        shutil.copytree(folders()[name], folder)
        for checkpoint in sorted((folder / "checkpoint").glob("round-*"), reverse=True)[:lost]:
            shutil.rmtree(checkpoint)
        try:
            found.append(READERS[reader](folder, rounds))
        except UserError:
            if not lost:
                raise
            found.append({})
        shutil.rmtree(folder)
    return Views(found[0], found[1] or None)


@cache
def others() -> dict[str, Path]:
    """Return for each folder a finished run that differs from it by its seed."""
    found = {"finished": settings("pflego", 3, 1), "killed": settings("ditto", 6, 2)}
    for name, arguments in found.items():
        ended = command("run", *arguments, "--set", "run.seed=1", "--out", workspace() / f"other-{name}")
        assert ended.code == 0, ended.output
    return {name: workspace() / f"other-{name}" for name in found}


@cache
def all_damages() -> tuple[tuple[str, Damage | Swap], ...]:
    """Return every damage to every file of both folders. A run without summary.json has just not finished."""
    found: list[tuple[str, Damage | Swap]] = []
    for name, folder in folders().items():
        found += [(name, swap) for swap in swaps(others()[name])]
        files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
        found += [(name, damage) for damage in damages(folder, files) if damage[:2] != ("summary.json", "lost")]
    return tuple(found)


def prepare() -> int:
    """Make both folders and look at them."""
    warm_up()
    for name in folders():
        for reader in READERS:
            for rounds in (0, 8):
                views(name, reader, rounds)
    return len(all_damages())


def attempt(seed: int, folder: Path) -> str:
    """Damage one file and read the folder in every way."""
    name, damage = all_damages()[seed * STRIDE % len(all_damages())]
    about = f"{name}: {damage}"
    out = folder / "run"
    shutil.copytree(folders()[name], out)
    if not damage.to(out):
        return f"{about}: nothing changes"
    told, escapes = [], []
    for reader in READERS:
        try:
            told.append(_read(reader, name, out, rounds=8 * (seed % 2)))
        except Escape as escape:
            escapes.append(f"{reader}: {escape}")
    if escapes:
        raise Escape(f"{about}: {'; '.join(escapes)}")
    return f"{about}: {', '.join(told)}"


def _read(reader: str, name: str, out: Path, rounds: int) -> str:
    expected, warnings = views(name, reader, rounds), _Warnings()
    logger = logging.getLogger("coterie")
    logger.addHandler(warnings)
    try:
        seen = READERS[reader](out, rounds)
    except UserError as error:
        if damage_free(str(error)):
            raise Escape(f"refuses without naming a file: {error}") from None
        return "refused"
    except OSError as error:
        if reader == "coterie.load" or not error.filename:
            raise Escape(repr(error)) from None
        return "refused"
    except Exception as error:
        raise Escape(f"{type(error).__name__}: {error}") from None
    finally:
        logger.removeHandler(warnings)
    if seen == expected.newest:
        return "same"
    if seen == expected.older and warnings.told:
        return "fell back with a warning"
    different = [part for part in seen if seen[part] != expected.newest.get(part)]
    raise Escape(f"another {', '.join(different)}, in silence")


def damage_free(message: str) -> bool:
    """Return whether a message names neither a file nor a key."""
    return not any(mark in message for mark in ("/", ".", "[", "_"))


class _Warnings(logging.Handler):
    """Remembers whether there was a warning about damage."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.told = False

    def emit(self, record: logging.LogRecord) -> None:
        self.told |= "damaged" in record.getMessage()


CAMPAIGN = Campaign(
    "bits",
    "single bits, cuts and overwritten ranges of a run folder, and files of another run: a reader refuses, falls back "
    "with a warning, or sees what was there before",
    attempt,
    prepare,
    20_000,
)
