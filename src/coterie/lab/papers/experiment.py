"""Experiments of papers. Each consists of cells: runs of its recipes that differ in a few named settings."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, ClassVar, Literal, Protocol, TypeVar

from coterie import recipe as recipes
from coterie import registry
from coterie.errors import UserError
from coterie.lab.papers.comparison import Row, accuracy
from coterie.lab.papers.figure import curve_panels
from coterie.lab.papers.measured import Percentage
from coterie.lab.papers.sheet import PublishedUsers, Sheet
from coterie.recipe import Recipe, Tables
from coterie.report.panels import Drawing
from coterie.report.tables import Table

SCALES = ("small", "full")
"""Values of `--scale`."""
OPTIONS = {"data": "--data", "degree": "--degree", "method": "--methods"}
"""Axes that `coterie reproduce` can select from, and the option for each."""


class Placed(Protocol):
    """Anything that has a place in an experiment."""

    @property
    def at(self) -> Mapping[str, str]:
        """Value on each axis of the experiment."""


P = TypeVar("P", bound=Placed)


@dataclass(frozen=True)
class Variant:
    """A cell without scale and seed."""

    at: Mapping[str, str]
    """Value on each axis of the experiment. The axis "method" has the name of the method."""
    recipe: str
    """Name of a recipe whose section [experiment] has this method."""
    changes: Tables = field(default_factory=dict)
    """Settings in which the variant differs from the recipe of its method."""
    published: Literal["accuracy", "seconds", "nothing"] = "accuracy"
    """Which of the published figures in the recipe belong to this variant."""
    users: PublishedUsers = field(default_factory=dict)
    """Published figures over the users of this variant, instead of those in the recipe."""
    times: int = 1
    """Number of rounds, as a multiple of the rounds of the recipe."""

    @property
    def row(self) -> str:
        """Name of the row in the table, without the seed."""
        return _row(self.at)


@dataclass(frozen=True)
class Cell:
    """One run of an experiment."""

    at: Mapping[str, str]
    recipe: Recipe
    protocol: str
    published: Percentage | None
    published_seconds: float | None
    users: PublishedUsers = field(default_factory=dict)

    @property
    def row(self) -> str:
        """Name of the row in the table, without the seed."""
        return _row(self.at)

    @property
    def labels(self) -> str:
        """Label space: "local" or "global"."""
        return self.recipe.method.labels if self.recipe.model.labels == "auto" else self.recipe.model.labels

    @property
    def name(self) -> str:
        """Name of the folder of the run."""
        return f"{self.row}-seed{self.recipe.run.seed}"


class Experiment(ABC):
    """A table or figure of a paper. The first line of the docstring is its title."""

    along: ClassVar[Sequence[str]] = ("method",)
    """Axes that distinguish the curves of a panel; the others distinguish panels. If empty, there is no figure."""

    @abstractmethod
    def variants(self) -> Iterable[Variant]:
        """Return all variants, in the order of the table."""

    def table(self, rows: Sequence[Row]) -> Table:
        """Return the table of published and measured results."""
        return accuracy(rows)

    def figure(self, rows: Sequence[Row]) -> Sequence[Sequence[Drawing]]:
        """Return the panels of the figure, in rows. There is no figure if there are none."""
        return curve_panels(rows, self.along) if self.along else []

    def choose(self, name: str, wanted: Mapping[str, Sequence[str]]) -> list[Variant]:
        """Return the variants that have the wanted values. `name` is the name of the experiment, for errors."""
        return choose(list(self.variants()), name, wanted)


def choose(places: Sequence[P], name: str, wanted: Mapping[str, Sequence[str]]) -> list[P]:
    """Return the places that have one of the wanted values on each axis in `wanted`.

    `name` is the name of the experiment, for errors.
    """
    axes = {axis: list(dict.fromkeys(each.at[axis] for each in places)) for axis in places[0].at}
    there_is = "; ".join(f"{OPTIONS[axis]} {','.join(axes[axis])}" for axis in OPTIONS if axis in axes)
    for axis, values in wanted.items():
        if axis not in axes:
            raise UserError(f"{name} has no {OPTIONS[axis]}; available: {there_is}")
        for value in values:
            if value not in axes[axis]:
                close = registry.nearest(value, axes[axis])
                raise UserError(f"{name} has no {OPTIONS[axis]} {value}{close}; available: {there_is}")
    chosen = [each for each in places if all(each.at[axis] in values for axis, values in wanted.items())]
    if not chosen:
        raise UserError(f"{name} has no cell with all of these values; available: {there_is}")
    return chosen


def check_scale(scale: str) -> None:
    """Raise UserError if the scale does not exist."""
    if scale not in SCALES:
        raise UserError(f"no --scale {scale}{registry.nearest(scale, SCALES)}; available: {', '.join(SCALES)}")


def cells(variant: Variant, scale: str, seeds: int, changes: Sequence[str]) -> list[Cell]:
    """Return a cell for each seed. The scale changes the recipe first, then the variant, then the user's changes."""
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
    """Return the name of a cell without its seed."""
    return "-".join(at.values())


def _with_seed(recipe: Recipe, seed: int) -> Recipe:
    return replace(recipe, run=replace(recipe.run, seed=seed))


@cache
def _recipe(name: str) -> tuple[dict[str, Any], Sheet]:
    tree = recipes.load(name)
    return tree, Sheet.of(tree)
