"""The section [experiment] of a recipe: what a paper says about it, and the methods that are compared on it.

    [experiment.methods]                       how each method's recipe differs from the one above, by section and key
    pflego = {}
    fedavg = { method.eta = 0.007, model.labels = "local" }

    [experiment.published]                     mean and standard error in percent, as printed
    pflego = [98.70, 0.21]

    [experiment.users]                         mean, bottom decile and deviation over users in percent, as printed
    feddecay = { existing = [87.22, 84.90, 2.33], new = [80.39] }

The file's [method] carries over to its own method only: another one takes other options.
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
"""Mean, and where printed bottom decile and deviation: of one run, or over several seeds; after adaptation."""


@settings
class Sheet:
    title: str = ""
    protocol: Literal["participants", "as_is", "adapted"] = "participants"
    """Under which the paper took its figures."""
    methods: dict[str, Tables] = field(default_factory=dict)
    """The methods that are compared, and how the recipe of each differs."""
    published: dict[str, Annotated[list[Number], Field(min_length=2, max_length=2)]] = field(default_factory=dict)
    """For each method mean and standard error, in percent."""
    users: dict[str, PublishedUsers] = field(default_factory=dict)
    """For each method what is published of existing and of new users, in percent."""
    seconds: dict[str, Number] = field(default_factory=dict)
    """For each method the published seconds a round."""
    small: Tables = field(default_factory=dict)
    """How the recipe of each differs at `--scale small`."""

    @classmethod
    def of(cls, tree: Mapping[str, Any]) -> "Sheet":
        """From a recipe's nested tables; every recipe that comes of it is checked."""
        section = tree.get("experiment", {})
        if not isinstance(section, dict):
            raise UserError(f"experiment = {section!r} must be a section with keys, like experiment.title")
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
        """The nested tables of one method's recipe."""
        own = self.methods[method]
        rest = {section: table for section, table in tree.items() if section != "experiment"}
        return changed(rest, {**own, "method": {"name": method, **own.get("method", {})}})


@contextmanager
def _named(place: str) -> Iterator[None]:
    try:
        yield
    except UserError as error:
        raise UserError(f"{place}: {error}") from None
