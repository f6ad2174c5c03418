"""Checkpoints: safetensors files and a manifest with their sha256. A checkpoint is complete or does not exist.

A checkpoint is a folder `round-NNNNNN`. It is written under another name and renamed when every byte is on the disk.
Personal states are stored next to it in `personal/`, in segments that checkpoints share. Each checkpoint writes only
new states and lists the segments that it needs. Nothing depends on the clock, so equal runs have equal checkpoints.
The last two checkpoints are kept. If the newer one is damaged or belongs to another run, the older one is used.
"""

import hashlib
import json
import logging
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load, save

from coterie.core.tree import Tree
from coterie.errors import UserError
from coterie.storage.files import (
    PRIVATE,
    delete_file,
    delete_folder,
    make_private,
    packed,
    sync_folder,
    unpacked,
    write_durably,
)
from coterie.storage.origin import RUN
from coterie.storage.segments import Segment
from coterie.storage.store import PersonalStore

KEEP = 2
"""Number of checkpoints that are kept."""
PERSONAL = "personal"
logger = logging.getLogger("coterie")


def save_checkpoint(folder: Path, index: int, trees: Mapping[str, Tree], store: PersonalStore, run: str) -> None:
    """Write a checkpoint, with the identity of the run."""
    make_private(folder)
    layout = store.write(folder / PERSONAL)
    for segment in layout.segments:
        segment.path.stat()  # fails now if somebody deleted a file that the run still needs
    target = folder / _name(index)
    partial = folder / f".{target.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    make_private(partial)
    sums = {}
    for name, tree in trees.items():
        content = save(packed(tree))
        sums[f"{name}.safetensors"] = write_durably(partial / f"{name}.safetensors", [content], PRIVATE)
    needs = {"sha256": sums, PERSONAL: [segment.sha256 for segment in layout.segments]}
    manifest = json.dumps({"round": index, RUN: run, **needs}, indent=2, sort_keys=True).encode()
    sha256 = write_durably(partial / "manifest.json", [manifest], PRIVATE)
    write_durably(partial / "manifest.sha256", [sha256.encode()], PRIVATE)
    sync_folder(partial)
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)
    sync_folder(folder)
    store.adopt(layout)
    tidy(folder, index, run)


def load_checkpoint(folder: Path, store: PersonalStore, run: str) -> tuple[int, dict[str, Tree]]:
    """Restore the personal states of a run's newest intact checkpoint.

    Returns (round, trees), or (0, {}) if there is no checkpoint.
    """
    for target in _newest_first(folder):
        try:
            manifest = _manifest(target, run)
            trees = {
                file.removesuffix(".safetensors"): unpacked(load(_checked(target / file, own)))
                for file, own in manifest["sha256"].items()
            }
            segments = [Segment.checked(_segment(folder, sha256)) for sha256 in manifest[PERSONAL]]
        except (OSError, ValueError, KeyError) as error:
            logger.warning("%s is damaged or misplaced (%s) and is skipped", target, error)
            continue
        store.restore(segments)
        return manifest["round"], trees
    if _newest_first(folder):
        raise UserError(
            f"all checkpoints in {folder} are damaged or belong to another run; restore them, or start the run again "
            "in another folder"
        )
    return 0, {}


def tidy(folder: Path, index: int, run: str) -> None:
    """Delete everything but the checkpoint of a round and the one before it, also what a killed run has left behind.

    Checkpoints of later rounds were damaged when the run was resumed.
    """
    rounds = [path for path in _newest_first(folder) if int(path.name[6:]) <= index]
    kept = rounds[:KEEP]
    for path in {*_newest_first(folder), *folder.glob(".round-*.partial")} - {*kept}:
        delete_folder(path)
    needed = set()
    for target in kept:
        try:
            needed |= {_segment(folder, sha256) for sha256 in _manifest(target, run)[PERSONAL]}
        except (OSError, ValueError, KeyError):
            delete_folder(target)  # it is damaged, so nobody can resume from it
    for path in {*(folder / PERSONAL).glob("*"), *(folder / PERSONAL).glob(".partial")} - needed:
        delete_file(path)


def _manifest(target: Path, run: str) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads(_checked(target / "manifest.json", (target / "manifest.sha256").read_text()))
    if manifest.get(RUN) != run:
        raise ValueError("it belongs to another run than recipe.toml")
    if target.name != _name(manifest["round"]):
        raise ValueError(f"it is the checkpoint of round {manifest['round']}")
    return manifest


def _name(index: int) -> str:
    return f"round-{index:06d}"


def _segment(folder: Path, sha256: str) -> Path:
    return folder / PERSONAL / f"{sha256}.safetensors"


def _checked(path: Path, expected: str) -> bytes:
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != expected:
        raise ValueError(f"the sha256 of {path.name} differs from the recorded one")
    return content


def _newest_first(folder: Path) -> list[Path]:
    rounds = {int(path.name[6:]): path for path in folder.glob("round-*") if re.fullmatch("[0-9]+", path.name[6:])}
    return [rounds[index] for index in sorted(rounds, reverse=True)]
