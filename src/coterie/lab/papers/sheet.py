"""Section [experiment] of a recipe: the methods to compare, and the published results of each.

    [experiment.methods]                       settings in which each method differs from the recipe, by section and key
    pflego = {}
    fedavg = { method.eta = 0.007, model.labels = "local" }

    [experiment.published]                     published mean and standard error, in percent
    pflego = [98.70, 0.21]

    [experiment.users]                         published mean, bottom decile and deviation over users, in percent
    feddecay = { existing = [87.22, 84.90, 2.33], new = [80.39] }

Section [method] of the file applies only to the method it names, as other methods have other settings.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from typing import Annotated, Any, Literal

from pydantic import Field

from coterie import registry
from coterie.errors import UserError
from coterie.recipe import Recipe, Tables, changed, make
from coterie.settings import settings

Number = Annotated[float, Field(allow_inf_nan=False)]
PublishedUsers = dict[
    Literal["existing", "new", "existing_over_seeds", "new_over_seeds"],
    Annotated[list[Number], Field(min_length=1, max_length=3)],
]
"""Published figures over users after adaptation, of one run or over several seeds: mean, bottom decile and deviation.

The bottom decile and the deviation can be omitted.
"""


@settings
class Sheet:
    """Published results of a paper, and the methods to compare with them."""

    title: str = ""
    """Title of the experiment."""
    protocol: Literal["participants", "as_is", "adapted"] = "participants"
    """Protocol of the published figures, among those of existing users."""
    methods: dict[str, Tables] = field(default_factory=dict)
    """Methods to compare, and the settings in which each of them differs from the recipe."""
    published: dict[str, Annotated[list[Number], Field(min_length=2, max_length=2)]] = field(default_factory=dict)
    """Published mean and standard error of each method, in percent."""
    users: dict[str, PublishedUsers] = field(default_factory=dict)
    """Published figures of each method over existing and new users, in percent."""
    seconds: dict[str, Number] = field(default_factory=dict)
    """Published seconds per round of each method."""
    small: Tables = field(default_factory=dict)
    """Settings that all methods change at `--scale small`."""

    @classmethod
    def of(cls, tree: Mapping[str, Any]) -> "Sheet":
        """Read section [experiment] of a recipe, and check the recipe of every method."""
        section = tree.get("experiment", {})
        if not isinstance(section, dict):
            raise UserError(f"experiment = {section!r} must be a section with keys, such as experiment.title")
        sheet = make(cls, "experiment", section)
        for key in ("published", "users", "seconds"):
            for name in getattr(sheet, key):
                if name not in sheet.methods:
                    close = registry.nearest(name, sheet.methods)
                    raise UserError(f"experiment.{key}.{name}: experiment.methods has no {name}{close}; add it there")
        for name in sheet.methods:
            own = sheet.tables(tree, name)
            with _named(f"experiment.methods.{name}"):
                Recipe.parse(own)
            with _named("experiment.small"):
                Recipe.parse(changed(own, sheet.small))
        return sheet

    def tables(self, tree: Mapping[str, Any], method: str) -> dict[str, Any]:
        """Return the recipe of one method as nested tables."""
        own = self.methods[method]
        rest = {section: table for section, table in tree.items() if section != "experiment"}
        return changed(rest, {**own, "method": {"name": method, **own.get("method", {})}})


@contextmanager
def _named(place: str) -> Iterator[None]:
    try:
        yield
    except UserError as error:
        raise UserError(f"{place}: {error}") from None
