"""The commands that list what is available: `coterie methods`, `datasets`, `partitions`, `models`, `settings`, ..."""

import dataclasses
import json
from typing import Annotated, Any

import typer
from rich.box import MARKDOWN
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from coterie.errors import UserError

COMMANDS = {"method": "methods", "data": "datasets", "partition": "partitions", "model": "models"}
"""The command that lists the names of a section."""
NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="Explain every setting of this one. Without a name, list all.")
]


def list_methods(
    name: NameArgument = "",
    leaves: Annotated[
        bool, typer.Option("--leaves", help="List what may leave a real site in each round, as patterns for a policy.")
    ] = False,
) -> None:
    """List the methods and their settings."""
    if leaves:
        _leaving(name)
    else:
        _listing("method", name)


def list_datasets(name: NameArgument = "") -> None:
    """List the data sets and their settings."""
    _listing("data", name)


def list_partitions(name: NameArgument = "") -> None:
    """List the partitions, which distribute the examples of a data set to clients."""
    _listing("partition", name)


def list_models(name: NameArgument = "") -> None:
    """List the models and their settings."""
    _listing("model", name)


def list_settings(
    section: Annotated[
        str, typer.Argument(metavar="SECTION", help="Only this section, such as run. Without one, list all.")
    ] = "",
) -> None:
    """List the settings of a recipe, by section. Change one with --set SECTION.KEY=VALUE."""
    from coterie import registry
    from coterie.recipe import NAMED, PLAIN, USUAL

    known = [*PLAIN, *NAMED]
    if section and section not in known:
        close = registry.nearest(section, known)
        raise UserError(f"unknown section [{section}]{close}; available: {', '.join(known)}")
    for name in [section] if section else known:
        Console().print(f"\\[{name}]", style="bold", highlight=False)
        if name in PLAIN:
            _explain(PLAIN[name])
        elif name in COMMANDS:
            usual = f" (default: {USUAL[name]})" if name in USUAL else ""
            text = f"name is one of: {', '.join(registry.names(name))}{usual}."
            more = f"`coterie {COMMANDS[name]} NAME` explains the other settings."
            Console().print(f"{text} {more}", highlight=False, markup=False)
        else:
            _listing(name, "")


def list_recipes() -> None:
    """List the recipes that come with Coterie."""
    from coterie import registry

    table = _table("name", "what it runs")
    for name, path in registry.recipes().items():
        table.add_row(name, path.read_text().splitlines()[0].removeprefix("#").strip())
    Console().print(table)


def list_experiments() -> None:
    """List the experiments of `coterie reproduce`."""
    from coterie import registry

    table = _table("name", "what it measures")
    for name in registry.names("experiment"):
        table.add_row(name, escape(_title(registry.load("experiment", name))))
    Console().print(table)


def _leaving(name: str) -> None:
    from coterie import registry
    from coterie.sites import leaving

    table = Table(*leaving.HEADINGS, box=MARKDOWN)
    for each in [name] if name else registry.names("method"):
        table.add_row(*map(escape, leaving.of_method(each).row()))
    Console().print(table)


def _listing(kind: str, name: str) -> None:
    from coterie import registry

    if name:
        _one(name, registry.load(kind, name))
        return
    table = _table("name", "what it is", "settings")
    for each in registry.names(kind):
        try:
            component = registry.load(kind, each)
        except UserError as error:  # a plug-in that is broken
            table.add_row(each, f"[red]{escape(str(error))}[/]", "")
            continue
        options = [f"{field.name} = {_default(field)}" for field in dataclasses.fields(component)]
        table.add_row(each, escape(_title(component)), escape("\n".join(options)))
    Console().print(table)


def _one(name: str, component: Any) -> None:
    Console().print(f"{name}: {_title(component)}", highlight=False, markup=False)
    _explain(component)


def _explain(component: Any) -> None:
    table = _table("setting", "default", "what it is")
    for field in dataclasses.fields(component):
        table.add_row(field.name, escape(_default(field)), escape(_description(component, field.name)))
    if table.rows:
        Console().print(table)


def _table(*headings: str) -> Table:
    """Return a table that breaks long words in a narrow terminal instead of cutting them off."""
    table = Table()
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def _title(component: Any) -> str:
    return (component.__doc__ or "").partition("\n")[0]


def _description(component: Any, name: str) -> str:
    """Return the docstring of a setting from the class that declares it. Pydantic does not pass it on to subclasses."""
    known = (vars(base).get("__pydantic_fields__", {}).get(name) for base in component.__mro__)
    return next((field.description for field in known if field is not None and field.description), "")


def _default(field: Any) -> str:
    value = field.default_factory() if field.default is dataclasses.MISSING else field.default
    return json.dumps(value) if value is not None else "-"
