"""What is searched: the section [sweep] of a recipe.

[sweep]
search = "tpe"                                          or "grid", all combinations of lists
protocol = "as_is"                                      whose validation score decides

[sweep.space]
method.tau = [10, 20, 50]                               a list: one of these
method.beta = { low = 0.01, high = 1.0, log = true }    a range: anything in it; whole numbers if both ends are
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
from coterie.measure.protocols import ADAPTED, AFTER, AS_IS, BEFORE
from coterie.recipe import ABSENT, Recipe, Tables, changed, make
from coterie.settings import Count, settings

Point = dict[str, Any]
"""A value for each searched key."""
Number = int | Annotated[float, Field(allow_inf_nan=False)]

PROTOCOLS = {"as_is": AS_IS, "adapted": ADAPTED, "new_before": BEFORE, "new_after": AFTER}
"""Protocols by the values of `sweep.protocol`."""
SECTIONS = ("method", "model", "aggregate")
KEYS = ("run.clients_per_round", "run.probability", "eval.adapt_steps")
"""What else may differ between trials: they have the same examples, the same seed and the same number of rounds."""


@settings
class SweepSettings:
    search: Literal["grid", "tpe"] = "grid"
    """All combinations, or Optuna's tree-structured Parzen estimator, which takes ranges too."""
    trials: Count | None = None
    """Of "tpe", 30 unless given; a grid has as many as there are combinations."""
    protocol: Literal["as_is", "adapted", "new_before", "new_after"] = "as_is"
    """Whose validation score decides: existing clients as they are or adapted, new users before or after adaptation."""
    prune: bool = True
    """Hyperband: a trial that is behind the others at an evaluation is given up."""
    space: dict[str, Any] = field(default_factory=dict)
    """By section and key, a list or a range."""


@settings
class Range:
    low: Number
    high: Number
    log: bool = False
    """Drawn evenly on a logarithmic scale."""

    def ends(self) -> list[Any]:
        return [self.low, self.high]


@settings
class OneOf:
    values: Annotated[list[Any], Field(min_length=1)]

    def ends(self) -> list[Any]:
        return self.values


@dataclass(frozen=True)
class Space:
    axes: Mapping[str, OneOf | Range]
    """By section.key."""

    @classmethod
    def of(cls, tables: Mapping[str, Any]) -> "Space":
        """From the tables under sweep.space, every end checked."""
        axes = {}
        for section, table in tables.items():
            if not isinstance(table, dict):
                raise UserError(f"sweep.space.{section} = {table!r}: name a key, like sweep.space.method.eta")
            for key, given in table.items():
                axes[f"{section}.{key}"] = _axis(f"{section}.{key}", given)
        if not axes:
            raise UserError(
                "there is nothing to search: say what in [sweep.space], or like --set sweep.space.method.eta=[0.01,0.1]"
            )
        return cls(axes)

    def check(self, base: Recipe) -> None:
        """Every value that is named, beside the first of every other key, makes a recipe."""
        for key, axis in self.axes.items():
            for value in axis.ends():
                try:
                    self.recipe(base, {**self.first(), key: value})
                except UserError as error:
                    raise UserError(f"sweep.space.{key}: {error}") from None

    def first(self) -> Point:
        return {key: axis.ends()[0] for key, axis in self.axes.items()}

    def combinations(self, seed: int) -> list[Point]:
        """The grid, shuffled: who comes late is judged more strictly, and that should not be the last of a list."""
        for key, axis in self.axes.items():
            if isinstance(axis, Range):
                raise UserError(
                    f"sweep.space.{key} is a range, and a grid needs lists: use --search tpe, or list values"
                )
        values = [axis.ends() for axis in self.axes.values()]
        points = [dict(zip(self.axes, point, strict=True)) for point in itertools.product(*values)]
        return [points[n] for n in streams.generator(seed, "sweep").permutation(len(points))]

    def recipe(self, base: Recipe, point: Point) -> Recipe:
        """Of a trial."""
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
    """A recipe file and its [sweep]; changes that begin with `sweep.` are for that, and `options` win."""
    tree = recipes.load(source)
    section = tree.pop("sweep", {})
    if not isinstance(section, dict):
        raise UserError(f"sweep = {section!r} must be a section with keys, like sweep.search")
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
        raise UserError(f"{place}{close}: trials are compared on the same examples and rounds; search among {there}")
    if isinstance(given, list):
        if not given:
            raise UserError(f"{place} = []: name at least one value")
        for n, value in enumerate(given):
            if value in given[:n]:
                raise UserError(f"{place} names {value!r} twice")
        return OneOf(given)
    if not isinstance(given, dict):
        raise UserError(f"{place} = {given!r} must be a list, or a range like {{ low = 0.01, high = 1.0, log = true }}")
    if missing := [end for end in ("low", "high") if end not in given]:
        raise UserError(f"{place} = {given!r}: a range needs {' and '.join(missing)}")
    within = make(Range, place, given)
    if within.low >= within.high:
        raise UserError(f"{place}: low = {within.low} must be below high = {within.high}")
    if within.log and within.low <= 0:
        raise UserError(f"{place}: low = {within.low} must be above 0 on a logarithmic scale")
    return within


def _tables(change: str) -> dict[str, Any]:
    """A `--set` that is TOML as it stands, or whose value is a bare word."""
    path, equals, text = change.partition("=")
    for line in (change, f"{path} {equals} {json.dumps(text.strip())}"):
        try:
            tree = tomllib.loads(line)
        except tomllib.TOMLDecodeError:
            continue
        if isinstance(tree["sweep"], dict):
            return tree
    raise UserError(f"--set {change!r} is not of the form sweep.key=value or sweep.space.section.key=[values]")


def _without(section: Mapping[str, Any], path: Sequence[str]) -> dict[str, Any]:
    """A key as if it were not given; `make` says if there is none of that name."""
    key, *deeper = path
    if not deeper:
        return {**section, key: ABSENT}
    inner = section.get(key)
    if not isinstance(inner, dict):
        return dict(section)
    left = {name: value for name, value in _without(inner, deeper).items() if value is not ABSENT}
    return {**section, key: left}


def _merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """With a range or a list as a whole in the place of an older one."""
    merged = {**old, **new}
    if isinstance(space := old.get("space"), dict) and isinstance(added := new.get("space"), dict):
        merged["space"] = {**space}
        for section, table in added.items():
            before = space.get(section)
            together = isinstance(before, dict) and isinstance(table, dict)
            merged["space"][section] = {**(before or {}), **table} if together else table
    return merged
