"""What a paper measured, as cells: runs of its recipes that differ in a few named ways."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal, Protocol, TypeVar

from coterie import recipe as recipes
from coterie import registry
from coterie.errors import UserError
from coterie.lab.papers.comparison import Row, accuracy
from coterie.lab.papers.measured import Percentage
from coterie.lab.papers.sheet import PublishedUsers, Sheet
from coterie.recipe import Recipe, Tables
from coterie.report.tables import Table

SCALES = ("small", "full")
OPTIONS = {"data": "--data", "degree": "--degree", "method": "--methods"}
"""The axes along which the command can choose, and its words for them."""


class Placed(Protocol):
    @property
    def at(self) -> Mapping[str, str]:
        """Its value on each axis of the experiment."""


P = TypeVar("P", bound=Placed)


@dataclass(frozen=True)
class Variant:
    """A cell before its scale and its seed are chosen."""

    at: Mapping[str, str]
    """Where it lies: the value on each axis of the experiment. That on "method" names the method."""
    recipe: str
    """A recipe with a section [experiment] that has this method."""
    changes: Tables = field(default_factory=dict)
    """How it differs from that recipe for that method."""
    published: Literal["accuracy", "seconds", "nothing"] = "accuracy"
    """What of the recipe's published figures is of this very variant."""
    users: PublishedUsers = field(default_factory=dict)
    """What is published of this very variant's users, in the place of the recipe's figures."""
    times: int = 1
    """As many rounds as the recipe has at its scale."""

    @property
    def row(self) -> str:
        return _row(self.at)


@dataclass(frozen=True)
class Cell:
    """A run."""

    at: Mapping[str, str]
    recipe: Recipe
    protocol: str
    published: Percentage | None
    published_seconds: float | None
    users: PublishedUsers = field(default_factory=dict)

    @property
    def row(self) -> str:
        return _row(self.at)

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"{self.row}-seed{self.recipe.run.seed}"


class Experiment(ABC):
    """A paper's table or figure. The first line of the docstring says which."""

    @abstractmethod
    def variants(self) -> Iterable[Variant]:
        """In the order of the table."""

    def table(self, rows: Sequence[Row]) -> Table:
        """Published and measured side by side."""
        return accuracy(rows)

    def choose(self, name: str, wanted: Mapping[str, Sequence[str]]) -> list[Variant]:
        """Some of the variants; `name` is the experiment's."""
        return choose(list(self.variants()), name, wanted)


def choose(places: Sequence[P], name: str, wanted: Mapping[str, Sequence[str]]) -> list[P]:
    """Those that have one of the wanted values on each axis that is named; `name` is the experiment's."""
    axes = {axis: list(dict.fromkeys(each.at[axis] for each in places)) for axis in places[0].at}
    there_is = "; ".join(f"{OPTIONS[axis]} {','.join(axes[axis])}" for axis in OPTIONS if axis in axes)
    for axis, values in wanted.items():
        if axis not in axes:
            raise UserError(f"{name} has no {OPTIONS[axis]}; it has: {there_is}")
        for value in values:
            if value not in axes[axis]:
                close = registry.nearest(value, axes[axis])
                raise UserError(f"{name} has no {OPTIONS[axis]} {value}{close}; it has: {there_is}")
    chosen = [each for each in places if all(each.at[axis] in values for axis, values in wanted.items())]
    if not chosen:
        raise UserError(f"{name} has no cell with all of these; it has: {there_is}")
    return chosen


def check_scale(scale: str) -> None:
    if scale not in SCALES:
        raise UserError(f"--scale {scale}{registry.nearest(scale, SCALES)}: there is {' and '.join(SCALES)}")


def cells(variant: Variant, scale: str, seeds: int, changes: Sequence[str]) -> list[Cell]:
    """One for each seed. The variant differs from what the scale makes of the recipe, the user's changes come last."""
    check_scale(scale)
    tree, sheet = _recipe(variant.recipe)
    method = variant.at["method"]
    own = recipes.changed(sheet.tables(tree, method), sheet.small if scale == "small" else {})
    try:
        recipe = recipes.read(recipes.changed(own, variant.changes), changes)
    except UserError as error:
        raise UserError(f"{' '.join(variant.at.values())}: {error}") from None
    recipe = replace(recipe, run=replace(recipe.run, rounds=variant.times * recipe.run.rounds))
    printed = variant.published == "accuracy" and method in sheet.published
    published = Percentage(*sheet.published[method]) if printed else None
    seconds = sheet.seconds.get(method) if variant.published == "seconds" else None
    users = variant.users or (sheet.users.get(method, {}) if variant.published == "accuracy" else {})
    return [
        Cell(variant.at, _with_seed(recipe, recipe.run.seed + n), sheet.protocol, published, seconds, users)
        for n in range(seeds)
    ]


def _row(at: Mapping[str, str]) -> str:
    """The name of a cell, whatever its seed."""
    return "-".join(at.values())


def _with_seed(recipe: Recipe, seed: int) -> Recipe:
    return replace(recipe, run=replace(recipe.run, seed=seed))


@cache
def _recipe(name: str) -> tuple[dict[str, Any], Sheet]:
    tree = recipes.load(name)
    return tree, Sheet.of(tree)
