"""The examples of each client as an npz file, which `Federation.from_folder` and a real site can read."""

from pathlib import Path
from typing import Any

import numpy as np

from coterie.data.federation import Federation
from coterie.errors import UserError


def write_client(federation: Federation, client: int, path: Path) -> None:
    """Write the examples of a client, split as they are in the federation."""
    if federation.edges is not None:
        raise UserError("the clients of a graph cannot be written to files of their own, because edges connect them")
    arrays: dict[str, Any] = {}
    names = np.array(federation.labels) if federation.labels else None
    for split, rows in federation.splits.items():
        own = rows.row(client)
        y = federation.y[own].numpy()
        arrays[f"x_{split}"] = federation.x[own].numpy()
        arrays[f"y_{split}"] = y if names is None else names[y]
    np.savez(path, **arrays)
