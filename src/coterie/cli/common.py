"""Parts that several commands share: arguments, output and the handling of Ctrl-C."""

import logging
import signal
from typing import Annotated, Any

import typer
from rich.console import Console

screen = Console(stderr=True)
logger = logging.getLogger("coterie")

RecipeArgument = Annotated[str, typer.Argument(help="Path of a TOML file, or a name from `coterie recipes`.")]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a setting, such as run.rounds=50 or data.path=DIR. Repeatable. KEY= restores the default.",
    ),
]


def on_interrupt() -> list[int]:
    """Catch Ctrl-C. The first one is added to the list that is returned; the second one stops the program at once."""
    received: list[int] = []

    def remember(number: int, _: Any) -> None:
        received.append(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        screen.print("\nStopping after this round. Press Ctrl-C again to stop at once.", highlight=False)

    signal.signal(signal.SIGINT, remember)
    return received
