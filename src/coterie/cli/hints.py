"""Hints for options that do not exist, because they are settings of a recipe."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from typer.core import TyperCommand


class WithHints(TyperCommand):
    """A command that takes `--set`. For an unknown option such as --rounds, it suggests --set run.rounds."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments, and explain an unknown option."""
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            option = getattr(error, "option_name", None)
            if type(error).__name__ == "NoSuchOption" and isinstance(option, str):  # the class has several homes
                vars(error).update(message=f"No such option: {option}. {_hint(option, given)}", possibilities=[])
            raise


def _hint(option: str, given: Sequence[str]) -> str:
    name, value = option.lstrip("-").replace("-", "_"), "VALUE"
    for each, following in zip(given, [*given[1:], "-"], strict=True):
        if each.startswith(f"{option}="):
            value = each.partition("=")[2]
        elif each == option and not following.startswith("-"):
            value = following
    if keys := _keys(name):
        return f"It is a setting: use {' or '.join(f'--set {key}={value}' for key in keys)}."
    return "Settings are changed with --set SECTION.KEY=VALUE; `coterie settings` and `coterie methods NAME` list them."


def _keys(name: str) -> list[str]:
    """Return the settings with this name, such as `run.rounds`."""
    from coterie import registry
    from coterie.recipe import NAMED, PLAIN, USUAL

    if name in NAMED:
        return [f"{name}.name"]
    sections = {**PLAIN, **{section: registry.load(section, usual) for section, usual in USUAL.items()}}
    fields = {section: [field.name for field in dataclasses.fields(cls)] for section, cls in sections.items()}
    return [f"{section}.{name}" for section, names in fields.items() if name in names]
