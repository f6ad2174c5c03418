"""The search space of a sweep: section [sweep] of a recipe.

[sweep]
search = "tpe"                                          or "grid": all combinations of lists
protocol = "as_is"                                      protocol whose validation score is used to choose

[sweep.space]
method.tau = [10, 20, 50]                               a list: one of these values
method.beta = { low = 0.01, high = 1.0, log = true }    a range: any value in it, an integer if both ends are integers
"""

import itertools
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from coterie import recipe as recipes
from coterie import registry, streams
from coterie.errors import UserError
from coterie.recipe import ABSENT, Recipe, Tables, changed, make
from coterie.settings import Count, settings

Point = dict[str, Any]
"""Values of the searched keys, such as {"method.tau": 10}."""
Number = int | Annotated[float, Field(allow_inf_nan=False)]

SECTIONS = ("method", "model", "aggregate")
"""Sections whose keys can be searched."""
KEYS = ("run.clients_per_round", "run.probability", "eval.adapt_steps")
"""Other keys that can be searched. All trials have the same examples, the same seed and the same number of rounds."""


@settings
class SweepSettings:
    """Settings of a sweep: section [sweep] of a recipe."""

    search: Literal["grid", "tpe"] = "grid"
    """Search strategy: "grid" tries all combinations of lists, "tpe" is Optuna's tree-structured Parzen estimator."""
    trials: Count | None = None
    """Number of TPE trials (default 30). A grid tries every combination."""
    protocol: Literal["as_is", "adapted", "new_before", "new_after"] = "as_is"
    """Protocol whose validation score is used to choose. The "new_" protocols evaluate new users."""
    prune: bool = True
    """Whether to stop trials early that are behind the others at an evaluation (Hyperband)."""
    space: dict[str, Any] = field(default_factory=dict)
    """List or range of values, by section and key."""


@settings
class Range:
    """All numbers between two ends."""

    low: Number
    high: Number
    log: bool = False
    """Whether values are drawn uniformly on a logarithmic scale."""

    def ends(self) -> list[Any]:
        """Return both ends."""
        return [self.low, self.high]


@settings
class OneOf:
    """A list of values to choose from."""

    values: Annotated[list[Any], Field(min_length=1)]

    def ends(self) -> list[Any]:
        """Return all values."""
        return self.values


@dataclass(frozen=True)
class Space:
    """The values that a sweep searches."""

    axes: Mapping[str, OneOf | Range]
    """List or range of values, by key such as `method.eta`."""

    @classmethod
    def of(cls, tables: Mapping[str, Any]) -> "Space":
        """Read the tables under sweep.space."""
        axes = {}
        for section, table in tables.items():
            if not isinstance(table, dict):
                raise UserError(f"sweep.space.{section} = {table!r}: name a key, such as sweep.space.method.eta")
            for key, given in table.items():
                axes[f"{section}.{key}"] = _axis(f"{section}.{key}", given)
        if not axes:
            raise UserError(
                "the search space is empty: add keys to [sweep.space], or use --set sweep.space.method.eta=[0.01,0.1]"
            )
        return cls(axes)

    def check(self, base: Recipe) -> None:
        """Raise UserError if a value does not make a valid recipe, together with the first value of all other keys."""
        for key, axis in self.axes.items():
            for value in axis.ends():
                try:
                    self.recipe(base, {**self.first(), key: value})
                except UserError as error:
                    raise UserError(f"sweep.space.{key}: {error}") from None

    def first(self) -> Point:
        """Return the first value of every key."""
        return {key: axis.ends()[0] for key, axis in self.axes.items()}

    def combinations(self, seed: int) -> list[Point]:
        """Return all combinations in random order, because pruning judges later trials more strictly."""
        for key, axis in self.axes.items():
            if isinstance(axis, Range):
                raise UserError(
                    f"sweep.space.{key} is a range, but a grid needs lists: use --search tpe, or list the values"
                )
        values = [axis.ends() for axis in self.axes.values()]
        points = [dict(zip(self.axes, point, strict=True)) for point in itertools.product(*values)]
        return [points[n] for n in streams.generator(seed, "sweep").permutation(len(points))]

    def recipe(self, base: Recipe, point: Point) -> Recipe:
        """Return the recipe of the trial at this point."""
        tables: Tables = {}
        for key, value in point.items():
            section, _, name = key.partition(".")
            tables.setdefault(section, {})[name] = value
        return Recipe.parse(changed(base.as_dict(), tables))


def shown(value: Any) -> str:
    """Return the value of a setting as people read it."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value)


def read(source: str | Path, changes: Sequence[str], options: Mapping[str, Any]) -> tuple[Recipe, SweepSettings]:
    """Read a recipe and its section [sweep]. `changes` override the file, and `options` override [sweep]."""
    tree = recipes.load(source)
    section = tree.pop("sweep", {})
    if not isinstance(section, dict):
        raise UserError(f"sweep = {section!r} must be a section with keys, such as sweep.search")
    own = [change for change in changes if change.startswith("sweep.")]
    for change in own:
        path, equals, text = change.partition("=")
        if equals and not text.strip():
            section = _without(section, path.strip().split(".")[1:])
        else:
            section = _merged(section, _tables(change)["sweep"])
    section |= {key: value for key, value in options.items() if value is not None}
    base = recipes.read(tree, [change for change in changes if change not in own])
    return base, make(SweepSettings, "sweep", section)


def _axis(key: str, given: Any) -> OneOf | Range:
    place = f"sweep.space.{key}"
    if key.partition(".")[0] not in SECTIONS and key not in KEYS:
        there = ", ".join([f"{section}.*" for section in SECTIONS] + list(KEYS))
        close = registry.nearest(key, [*SECTIONS, *KEYS])
        raise UserError(
            f"{place}{close} cannot be searched, because all trials use the same examples and rounds; available: "
            f"{there}"
        )
    if isinstance(given, list):
        if not given:
            raise UserError(f"{place} = []: name at least one value")
        for n, value in enumerate(given):
            if value in given[:n]:
                raise UserError(f"{place} contains {value!r} twice; remove one of them")
        return OneOf(given)
    if not isinstance(given, dict):
        raise UserError(f"{place} = {given!r} must be a list or a range, like {{ low = 0.01, high = 1.0, log = true }}")
    if missing := [end for end in ("low", "high") if end not in given]:
        raise UserError(f"{place} = {given!r}: a range needs {' and '.join(missing)}")
    within = make(Range, place, given)
    if within.low >= within.high:
        raise UserError(f"{place}: low = {within.low} must be below high = {within.high}")
    if within.log and within.low <= 0:
        raise UserError(f"{place}: low = {within.low} must be above 0 on a logarithmic scale")
    return within


def _tables(change: str) -> dict[str, Any]:
    """Parse a `--set` that is valid TOML, or whose value is a bare word."""
    path, equals, text = change.partition("=")
    for line in (change, f"{path} {equals} {json.dumps(text.strip())}"):
        try:
            tree = tomllib.loads(line)
        except tomllib.TOMLDecodeError:
            continue
        if isinstance(tree["sweep"], dict):
            return tree
    raise UserError(f"--set {change!r} must have the form sweep.key=value or sweep.space.section.key=[values]")


def _without(section: Mapping[str, Any], path: Sequence[str]) -> dict[str, Any]:
    """Mark a key as not given. `make` reports an unknown key."""
    key, *deeper = path
    if not deeper:
        return {**section, key: ABSENT}
    inner = section.get(key)
    if not isinstance(inner, dict):
        return dict(section)
    left = {name: value for name, value in _without(inner, deeper).items() if value is not ABSENT}
    return {**section, key: left}


def _merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two [sweep] sections. A new list or range replaces the old one as a whole."""
    merged = {**old, **new}
    if isinstance(space := old.get("space"), dict) and isinstance(added := new.get("space"), dict):
        merged["space"] = {**space}
        for section, table in added.items():
            before = space.get(section)
            together = isinstance(before, dict) and isinstance(table, dict)
            merged["space"][section] = {**(before or {}), **table} if together else table
    return merged
