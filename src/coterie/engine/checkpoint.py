"""Checkpoints: safetensors files and a manifest of their sha256, complete or not there at all.

A checkpoint is a folder `round-NNNNNN`, written under another name and renamed when every byte is on the disk. It holds
nothing that depends on the clock, so that equal runs have equal checkpoints. The last two are kept: should the newer
one be damaged, the older one serves.
"""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load, save

from coterie.errors import UserError
from coterie.tree import Tree

KEEP = 2
logger = logging.getLogger("coterie")


def write_atomically(path: Path, content: bytes) -> None:
    """The file is as it was, or whole and new."""
    partial = path.with_name(f".{path.name}.partial")
    _write_durably(partial, content)
    partial.replace(path)
    _sync_folder(path.parent)


def save_checkpoint(folder: Path, index: int, trees: Mapping[str, Tree], facts: Mapping[str, Any]) -> None:
    """`facts` are what must agree when the run is resumed."""
    target = folder / f"round-{index:06d}"
    partial = folder / f".{target.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    sums = {}
    for name, tree in trees.items():
        content = save({key: value.detach().cpu().contiguous().clone() for key, value in tree.items()})
        sums[f"{name}.safetensors"] = hashlib.sha256(content).hexdigest()
        _write_durably(partial / f"{name}.safetensors", content)
    manifest = json.dumps({"round": index, "sha256": sums, **facts}, indent=2, sort_keys=True).encode()
    _write_durably(partial / "manifest.json", manifest)
    _write_durably(partial / "manifest.sha256", hashlib.sha256(manifest).hexdigest().encode())
    _sync_folder(partial)
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)
    _sync_folder(folder)
    for old in _newest_first(folder)[KEEP:]:
        shutil.rmtree(old)


def load_checkpoint(folder: Path, facts: Mapping[str, Any]) -> tuple[int, dict[str, Tree]]:
    """(round, trees) of the newest checkpoint that is whole; round 0 and no trees where there is none."""
    for target in _newest_first(folder):
        try:
            manifest, trees = _read(target)
        except (OSError, ValueError, KeyError) as error:
            logger.warning("%s is damaged (%s)", target, error)
            continue
        for name, value in facts.items():
            if manifest.get(name) != value:
                raise UserError(
                    f"{target}: the {name} differs from the one this run was started on; resume with the same"
                )
        return manifest["round"], trees
    if _newest_first(folder):
        raise UserError(f"no checkpoint in {folder} is whole; start the run anew in another folder")
    return 0, {}


def _read(target: Path) -> tuple[dict[str, Any], dict[str, Tree]]:
    manifest = json.loads(_checked(target / "manifest.json", (target / "manifest.sha256").read_text()))
    sums = manifest["sha256"].items()
    return manifest, {file.removesuffix(".safetensors"): load(_checked(target / file, own)) for file, own in sums}


def _checked(path: Path, expected: str) -> bytes:
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != expected:
        raise ValueError(f"the sha256 of {path.name} is not what was written down")
    return content


def _newest_first(folder: Path) -> list[Path]:
    rounds = {int(path.name[6:]): path for path in folder.glob("round-*") if path.name[6:].isdigit()}
    return [rounds[index] for index in sorted(rounds, reverse=True)]


def _write_durably(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
