"""The command `coterie run`."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from coterie.cli.common import (
    Changes,
    RecipeArgument,
    complain,
    exit_code,
    home,
    logger,
    next_free,
    on_interrupt,
    screen,
    show_run,
)
from coterie.errors import DiskError, UserError


def run(
    recipe: RecipeArgument = "",
    changes: Changes = None,
    out: Annotated[
        Path | None, typer.Option(callback=home, help="Folder for the run (default: runs/DATA-METHOD-N).")
    ] = None,
    resume: Annotated[Path | None, typer.Option(callback=home, help="Continue the run in this folder.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print only summary.json.")] = False,
) -> None:
    """Train the federation of RECIPE. Without a recipe, train on the built-in digits data."""
    from coterie import recipe as recipes
    from coterie.lab.papers.sheet import Sheet
    from coterie.storage.origin import read_origin
    from coterie.track.bars import RunProgress
    from coterie.training import Training

    if resume is not None and out is not None:
        raise UserError("--resume continues in its own folder; omit --out")
    if resume is not None:
        read_origin(resume)
    source = recipe or (resume / "recipe.toml" if resume is not None else "digits")
    tree = recipes.load(source)
    if "experiment" in tree:
        Sheet.of(tree)  # which checks it
    settings = recipes.read(tree, changes or [])
    federation = settings.federation()
    names = {section: table.get("name") for section, table in settings.as_dict().items()}
    folder = resume or out or next_free(Path("runs"), f"{names['data']}-{names['method']}")
    training = Training(settings, federation, folder, resume=resume is not None)
    interrupted = on_interrupt()
    logger.info("%s on %s: %s", names["method"], names["data"], federation)
    with RunProgress(screen, training.clients, training.rounds, quiet=as_json) as progress:
        try:
            result = training.play(progress.advance, lambda: bool(interrupted))
        except KeyboardInterrupt:
            progress.stop()
            program = ["python", "-m", "coterie"] if sys.argv[0].endswith("__main__.py") else sys.argv[:1]
            command = shlex.join([*program, "run", "--resume", str(folder)])
            screen.print(f"Stopped. To continue:\n  {command}", highlight=False, soft_wrap=True, markup=False)
            raise typer.Exit(exit_code(interrupted)) from None
        except DiskError as error:
            progress.stop()
            if error.run is not None:
                show_run(error.run.summary, folder, as_json)
            raise
    summary = result.summary
    show_run(summary, folder, as_json)
    if not summary.learned:
        complain(
            "error",
            f"no client took part in any of the {summary.rounds:,} rounds, so nothing was learned and the scores are "
            "those of untrained models; check [population] and how [run] samples clients (`coterie settings`)",
        )
        raise typer.Exit(1)
