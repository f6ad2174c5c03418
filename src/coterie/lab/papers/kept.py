"""A file with the figures of all runs of a campaign. With this file, run folders need not be kept."""

import json
from pathlib import Path
from typing import Any

from coterie.lab.papers.experiment import Cell
from coterie.lab.papers.measured import Measured
from coterie.recipe import Recipe
from coterie.storage.files import write_atomically


class Kept:
    """Figures by row and seed, with the recipe of each row. The recipe is the same for all seeds of a row."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: dict[str, Any] = self._read()

    def __contains__(self, row: str) -> bool:
        return row in self._rows

    def measured(self, cell: Cell) -> Measured | None:
        """Return the figures of a cell, or None if it was not measured."""
        found = self._rows.get(cell.row, {}).get("seeds", {}).get(str(cell.recipe.run.seed))
        return Measured.from_dict(found) if found else None

    def recipe(self, cell: Cell) -> dict[str, Any] | None:
        """Return the recipe that a cell was run with, or None. Settings that are newer than the run have defaults."""
        if self.measured(cell) is None:
            return None
        tree = self._rows[cell.row]["recipe"]
        return Recipe.parse({**tree, "run": {**tree["run"], "seed": cell.recipe.run.seed}}).as_dict()

    def keep(self, cell: Cell, measured: Measured) -> None:
        """Remember the figures of a cell."""
        row = self._rows.setdefault(cell.row, {"recipe": cell.recipe.as_dict(), "seeds": {}})
        row["seeds"][str(cell.recipe.run.seed)] = measured.as_dict()

    def refresh(self) -> None:
        """Add figures that another process has written in the meantime."""
        for name, row in self._read().items():
            mine = self._rows.setdefault(name, row)
            mine["seeds"] = {**row["seeds"], **mine["seeds"]}

    def write(self) -> None:
        """Write the file, with a line for each run. Nothing is written if there are no runs."""
        self.refresh()
        if not self._rows:
            return
        parts = []
        for name, row in self._rows.items():
            seeds = ",\n".join(f"  {json.dumps(seed)}: {json.dumps(found)}" for seed, found in row["seeds"].items())
            parts.append(f'{json.dumps(name)}: {{"recipe": {json.dumps(row["recipe"])}, "seeds": {{\n{seeds}}}}}')
        write_atomically(self._path, ("{\n" + ",\n".join(parts) + "\n}\n").encode())

    def _read(self) -> dict[str, Any]:
        return json.loads(self._path.read_text()) if self._path.exists() else {}
