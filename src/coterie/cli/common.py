"""Parts that several commands share: arguments, output and the handling of Ctrl-C."""

import json
import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

if TYPE_CHECKING:
    from coterie.measure.summary import Summary

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


def show_run(summary: "Summary", folder: Path, as_json: bool) -> None:
    """Print the results of a run."""
    from coterie.report.terminal import closing_table, cost_line, explanations, remarks

    console = Console()
    if as_json:
        sys.stdout.write(json.dumps(summary.to_json(), indent=2) + "\n")
    else:
        console.print(closing_table(summary, console.width))
        if summary.remarks():
            console.print(remarks(summary), style="bold", highlight=False, markup=False)
        console.print(explanations(summary), style="dim", highlight=False)
        console.print(cost_line(summary), highlight=False)
        console.print(f"{folder}/report.html", highlight=False, soft_wrap=True, markup=False)


def next_free(parent: Path, name: str) -> Path:
    """Return the path of a new folder: the name and the first number that is free."""
    return next(path for n in range(1, 1_000_000) if not (path := parent / f"{name}-{n}").exists())
