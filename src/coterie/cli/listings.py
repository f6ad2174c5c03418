"""coterie methods | datasets | partitions | models | recipes: what there is."""

import dataclasses
import json
from typing import Any

from rich.console import Console
from rich.table import Table


def list_methods() -> None:
    """The methods there are, with their settings."""
    _listing("methods")


def list_datasets() -> None:
    """The data sets there are."""
    _listing("data")


def list_partitions() -> None:
    """The ways to deal a data set to clients."""
    _listing("partition")


def list_models() -> None:
    """The networks there are."""
    _listing("models")


def list_recipes() -> None:
    """The recipes that come with Coterie."""
    from coterie.recipe import available

    table = Table("name", "what it runs")
    for name, path in available().items():
        table.add_row(name, path.read_text().splitlines()[0].removeprefix("#").strip())
    Console().print(table)


def _listing(kind: str) -> None:
    from coterie import registry

    table = Table("name", "what it is", "settings")
    for name in registry.names(kind):
        component: Any = registry.load(kind, name)
        options = [f"{field.name} = {_default(field)}" for field in dataclasses.fields(component)]
        table.add_row(name, (component.__doc__ or "").partition("\n")[0], "\n".join(options))
    Console().print(table)


def _default(field: Any) -> str:
    value = field.default_factory() if field.default is dataclasses.MISSING else field.default
    return json.dumps(value) if value is not None else "-"
