"""The files of a run folder, besides checkpoints, from which models can be loaded without the data.

announcement.json       what every client was told before the first round, and the identity of the run
initial.safetensors     the initial network
clients.safetensors     names, label sets and roles of the clients
"""

import hashlib
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load, save

from coterie.core.tree import Tree
from coterie.data.ragged import Ragged
from coterie.errors import UserError
from coterie.storage.files import PRIVATE, packed, unpacked, write_atomically
from coterie.storage.origin import RECIPE, RUN, read_origin
from coterie.storage.seal import BrokenSealError, read_json, sealed_json

ANNOUNCEMENT, INITIAL, MEMBERS = "announcement.json", "initial.safetensors", "clients.safetensors"
FILES = "files"
"""Key of the digests of the other two files in announcement.json."""


class Members(NamedTuple):
    """The clients of a run, without their data."""

    ids: tuple[str, ...]
    classes: Ragged
    """Label set of each client, as places in the list of all classes."""
    is_new: NDArray[np.bool_]
    """Which clients were held out of training."""


class Artifact(NamedTuple):
    """Everything that is needed to load the models of a run, besides a checkpoint."""

    announcement: Mapping[str, Any]
    initial: Tree
    members: Members


def write_artifact(folder: Path, artifact: Artifact, run: str) -> None:
    """Write the files of an artifact, with the identity of the run."""
    members = artifact.members
    names = [name.encode() for name in members.ids]
    columns: dict[str, NDArray[Any]] = {
        "ids": np.frombuffer(b"".join(names), np.uint8),
        "ids_lengths": np.array([len(name) for name in names], np.int64),
        "classes": members.classes.values,
        "classes_offsets": members.classes.offsets,
        "is_new": members.is_new,
    }
    content = save({name: torch.from_numpy(value.copy()) for name, value in columns.items()})
    files = {
        MEMBERS: write_atomically(folder / MEMBERS, content, PRIVATE),
        INITIAL: write_atomically(folder / INITIAL, save(packed(artifact.initial))),
    }
    write_atomically(folder / ANNOUNCEMENT, sealed_json({**artifact.announcement, RUN: run, FILES: files}))


def read_artifact(folder: Path) -> Artifact:
    """Read the files of an artifact."""
    missing = [name for name in (ANNOUNCEMENT, INITIAL, MEMBERS) if not (folder / name).exists()]
    if missing:
        raise UserError(
            f"{folder} lacks {', '.join(missing)}, so its models cannot be loaded or trained further. Folders of "
            "earlier versions of Coterie lack these files; their reports can still be read. Train again to get models"
        )
    try:
        announcement = read_json((folder / ANNOUNCEMENT).read_bytes())
        if announcement.pop(RUN, None) != read_origin(folder).run:
            raise UserError(
                f"{folder / ANNOUNCEMENT} belongs to another run than {RECIPE}. Restore it together with {INITIAL} and "
                f"{MEMBERS}, or start the run again in another folder"
            )
        raw = {name: (folder / name).read_bytes() for name in (INITIAL, MEMBERS)}
        for name, sha256 in announcement.pop(FILES).items():
            if hashlib.sha256(raw[name]).hexdigest() != sha256:
                raise UserError(f"{folder / name} is damaged: its sha256 differs from the one in {ANNOUNCEMENT}")
        columns = load(raw[MEMBERS])
        return Artifact(
            announcement,
            unpacked(load(raw[INITIAL])),
            Members(
                tuple(_names(columns["ids"].numpy().tobytes(), columns["ids_lengths"].tolist())),
                Ragged(columns["classes"].numpy(), columns["classes_offsets"].numpy()),
                columns["is_new"].numpy(),
            ),
        )
    except BrokenSealError as error:
        raise UserError(f"{folder / ANNOUNCEMENT} is damaged: {error}") from None
    except SafetensorError as error:
        raise UserError(f"{folder} is damaged: {error}") from None


def _names(text: bytes, lengths: Sequence[int]) -> list[str]:
    ends = np.cumsum([0, *lengths]).tolist()
    return [text[start:end].decode() for start, end in pairwise(ends)]
