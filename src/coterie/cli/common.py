"""What several commands share: their arguments, where they write, and Ctrl-C."""

import logging
import signal
from typing import Annotated, Any

import typer
from rich.console import Console

screen = Console(stderr=True)
logger = logging.getLogger("coterie")

RecipeArgument = Annotated[str, typer.Argument(help="A TOML file, or a name from `coterie recipes`.")]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the recipe; KEY= leaves it out, as if not given."),
]


def on_interrupt() -> list[int]:
    """The first Ctrl-C lets the round end and is remembered here; the second stops at once."""
    received: list[int] = []

    def remember(number: int, _: Any) -> None:
        received.append(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        screen.print("\nStopping after this round; Ctrl-C again to stop at once.", highlight=False)

    signal.signal(signal.SIGINT, remember)
    return received
