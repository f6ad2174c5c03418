"""The command `coterie sweep`."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from coterie.cli.common import Changes, RecipeArgument, exit_code, home, logger, on_interrupt, screen

if TYPE_CHECKING:
    from coterie.lab.sweep.sweep import Sweep


def sweep(
    recipe: RecipeArgument,
    changes: Changes = None,
    search: Annotated[str | None, typer.Option(help="grid or tpe (default: sweep.search of the recipe).")] = None,
    trials: Annotated[int | None, typer.Option(help="Number of TPE trials; a larger number adds trials.")] = None,
    out: Annotated[
        Path | None, typer.Option(callback=home, help="Folder for all trials (default: runs/sweep/DATA-METHOD).")
    ] = None,
) -> None:
    r"""Search \[sweep.space] of a recipe, and write the settings with the best validation score to best.toml."""
    from coterie.lab.sweep.space import read
    from coterie.lab.sweep.sweep import Sweep

    base, settings = read(recipe, changes or [], {"search": search, "trials": trials})
    base.dataset()  # raises an error early if the recipe has no data set
    names = {section: table.get("name") for section, table in base.as_dict().items()}
    folder = out or Path("runs", "sweep", f"{names['data']}-{names['method']}")
    work = Sweep(base, settings, folder)
    logger.info("%s on %s: %s", names["method"], names["data"], work.federation)
    logger.setLevel(logging.ERROR)  # the warnings of a trial are in its own folder
    interrupted = on_interrupt()
    stopped = _play(work, interrupted)
    for table in work.report():
        Console().print(table.printed(), highlight=False)
    for file in ("best.toml", "page.html"):
        if (folder / file).exists():
            Console().print(f"{folder}/{file}", highlight=False, soft_wrap=True, markup=False)
    work.close()
    if stopped:
        screen.print("Stopped. Run the same command again to continue.", highlight=False)
        raise typer.Exit(exit_code(interrupted))


def _play(work: "Sweep", interrupted: list[int]) -> bool:
    """Run the remaining trials. Return whether Ctrl-C or SIGTERM stopped them."""
    from coterie.cli.sweep_bars import SweepProgress

    with SweepProgress(screen, work.total, work.recipe.run.rounds, work.trials) as progress:
        try:
            for trial in work.play(progress.begin, progress.advance, lambda: bool(interrupted)):
                progress.end(trial)
        except KeyboardInterrupt:
            return True
    return False
