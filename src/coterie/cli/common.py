"""Parts that several commands share: arguments, output and the handling of Ctrl-C."""

import logging
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

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


def home(path: Path | None) -> Path | None:
    """Replace ~ in the value of an option by the home folder. A shell leaves it in quotes, and after `--out=`."""
    from coterie.settings import user_path

    return None if path is None else user_path(path)


def on_interrupt() -> list[int]:
    """Catch Ctrl-C and SIGTERM. The first signal is added to the list that is returned.

    The second Ctrl-C stops the program at once.
    """
    received: list[int] = []

    def remember(number: int, _: Any) -> None:
        received.append(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        screen.print("\nStopping after this round. Press Ctrl-C again to stop at once.", highlight=False)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, remember)
    return received


def exit_code(received: Sequence[int]) -> int:
    """Return the exit code of a program that was stopped by the first of these signals: 130 for Ctrl-C."""
    return 128 + (received[0] if received else signal.SIGINT)


def complain(word: str, text: str) -> None:
    """Print what went wrong, after a word in red."""
    screen.print(f"[bold red]{word}:[/] {escape(text)}", highlight=False, soft_wrap=True)
