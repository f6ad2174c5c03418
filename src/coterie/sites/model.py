"""The model of a site, on its own disk: what the server announced, the final shared model, and the personal state."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.torch import load, save

from coterie.core.tree import Tree
from coterie.errors import UserError
from coterie.storage.files import PRIVATE, make_private, packed, unpacked, write_atomically
from coterie.storage.seal import BrokenSealError, read_json, sealed_json

RUNS, ACCEPTED, MODEL = "runs", "run.json", "model.json"
"""Folder of all runs in the state of a site, and the files of a run: what was accepted, and what became of it."""


class SiteModel(NamedTuple):
    """What a site's model is made from."""

    announcement: Mapping[str, Any]
    name: str
    """Name of the site."""
    labels: tuple[Any, ...]
    """The labels of the site, sorted."""
    shared: Tree
    personal: Tree
    adapt_steps: int | str


def is_state(folder: Path) -> bool:
    """Return whether a folder is the state of a site."""
    return (folder / RUNS).is_dir() and not (folder / "recipe.toml").exists()


def write_accepted(folder: Path, terms: Mapping[str, Any]) -> None:
    """Write what was announced of a run that the site has accepted."""
    make_private(folder)
    write_atomically(folder / ACCEPTED, sealed_json(terms), PRIVATE)


def read_accepted(folder: Path) -> dict[str, Any]:
    """Read what was announced of a run. Raises UserError if the site has not accepted it."""
    try:
        return read_json((folder / ACCEPTED).read_bytes())
    except FileNotFoundError:
        raise UserError("this site has not accepted the run") from None
    except BrokenSealError as error:
        raise UserError(f"{folder / ACCEPTED} is damaged: {error}; restore it from a backup") from None


def write_model(folder: Path, name: str, labels: Sequence[Any], index: int, shared: Tree, personal: Tree) -> None:
    """Write the model of a site after a round."""
    files = {
        part: write_atomically(folder / f"{part}.safetensors", save(packed(tree)), PRIVATE)
        for part, tree in (("shared", shared), ("personal", personal))
    }
    kept = {"name": name, "round": index, "labels": list(labels), "files": files}
    write_atomically(folder / MODEL, sealed_json(kept), PRIVATE)


def read_model(state: Path) -> SiteModel:
    """Read the model of the run that ended last."""
    files = sorted((state / RUNS).glob(f"*/{MODEL}"), key=lambda file: file.stat().st_mtime_ns)
    if not files:
        raise UserError(f"{state} has no model yet: a site gets it when a run ends")
    folder = files[-1].parent
    accepted = read_accepted(folder)
    try:
        kept = read_json(files[-1].read_bytes())
    except BrokenSealError as error:
        raise UserError(f"{files[-1]} is damaged: {error}") from None
    shared, personal = (_tree(folder / f"{part}.safetensors", kept["files"][part]) for part in ("shared", "personal"))
    return SiteModel(
        accepted["announcement"], kept["name"], tuple(kept["labels"]), shared, personal, accepted["adapt_steps"]
    )


def _tree(file: Path, sha256: str) -> Tree:
    content = file.read_bytes() if file.exists() else b""
    if hashlib.sha256(content).hexdigest() != sha256:
        raise UserError(f"{file} is missing or damaged; restore it from a backup")
    return unpacked(load(content))
