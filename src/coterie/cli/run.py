"""The command `coterie run`."""

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from coterie.cli.common import Changes, RecipeArgument, complain, exit_code, home, logger, on_interrupt, screen
from coterie.errors import DiskError, UserError

if TYPE_CHECKING:
    from coterie.measure.summary import Summary


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
    folder = resume or out or _next_free(Path("runs"), f"{names['data']}-{names['method']}")
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
                _show(error.run.summary, folder, as_json)
            raise
    summary = result.summary
    _show(summary, folder, as_json)
    if not summary.learned:
        complain(
            "error",
            f"no client took part in any of the {summary.rounds:,} rounds, so nothing was learned and the scores are "
            "those of untrained models; check [population] and how [run] samples clients (`coterie settings`)",
        )
        raise typer.Exit(1)


def _show(summary: "Summary", folder: Path, as_json: bool) -> None:
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


def _next_free(parent: Path, name: str) -> Path:
    return next(path for n in range(1, 1_000_000) if not (path := parent / f"{name}-{n}").exists())
