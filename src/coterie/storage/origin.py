"""What a run starts from, and the identity that follows from it.

recipe.toml has the recipe, and digests of what the recipe does not determine. All other files of a run folder that a
program reads contain the identity of the run, so that a file of another run is noticed.
"""

import hashlib
import math
import shlex
from collections.abc import Mapping
from pathlib import Path
from tomllib import TOMLDecodeError
from typing import Any, NamedTuple

from coterie.errors import UserError
from coterie.storage.files import write_atomically
from coterie.storage.seal import BrokenSealError, read_toml, sealed_toml

RECIPE, ROUNDS = "recipe.toml", "rounds.jsonl"
RUN = "run"
"""Key of the identity in summary.json, announcement.json and the manifests of checkpoints."""


class Origin(NamedTuple):
    """What a run starts from."""

    recipe: dict[str, Any]
    """The value of every setting."""
    facts: Mapping[str, str]
    """Digests of the federation and of the initial model."""

    @property
    def run(self) -> str:
        """Identity of the run. It is the same for equal runs, and whenever they end."""
        timeless = {**self.recipe, "run": {**self.recipe["run"], "rounds": 0}}
        timeless.pop("stop", None)
        return hashlib.sha256(sealed_toml(timeless, self.facts)).hexdigest()

    def write(self, folder: Path) -> None:
        """Write recipe.toml."""
        write_atomically(folder / RECIPE, sealed_toml(self.recipe, self.facts))

    def check_resumed(self, folder: Path) -> None:
        """Raise UserError unless the run in a folder has the same origin, apart from an earlier end."""
        there, facts = read_origin(folder)
        if difference := first_difference(there, _ending_like(self.recipe, there)):
            raise UserError(
                f"{folder / RECIPE} differs from this recipe at {difference}; resume with the same recipe, or "
                "with more rounds or a longer stop.patience"
            )
        for name, value in self.facts.items():
            if facts.get(name) != value:
                raise UserError(
                    f"{folder}: the {name} differs from the one that this run started with; resume with the same {name}"
                )


def read_origin(folder: Path) -> Origin:
    """Read recipe.toml of a run folder."""
    file = folder / RECIPE
    if not file.exists() or not (folder / ROUNDS).exists():
        raise UserError(f"{folder} is not the folder of a run: recipe.toml or rounds.jsonl is missing")
    try:
        return Origin(*read_toml(file.read_bytes()))
    except BrokenSealError:
        raise UserError(
            f"{file} differs from what this run wrote: it was edited or damaged, or it is from an earlier version of "
            f"Coterie. Restore it to resume or load the run; to train with other settings, start a new run: "
            f"coterie run {shlex.quote(str(file))}"
        ) from None
    except (TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{file} is damaged: {error}") from None


def ends_later(recipe: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether a recipe has more rounds or more patience than another one that is otherwise the same."""
    return _ending_like(recipe, other) != recipe


def _ending_like(recipe: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe with the rounds and the patience of another one, where these are less."""
    after = dict(recipe)
    for section, key in (("run", "rounds"), ("stop", "patience")):
        mine, theirs = (each.get(section, {}).get(key, 0) for each in (recipe, other))
        if key == "patience":  # without any patience a run never stops
            mine, theirs = mine or math.inf, theirs or math.inf
        if mine > theirs:
            after[section] = {**recipe[section], key: other[section][key]}
    return after


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
