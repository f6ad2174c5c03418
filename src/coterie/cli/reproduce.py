"""The command `coterie reproduce`."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from coterie.cli.common import Changes, exit_code, home, logger, on_interrupt, screen
from coterie.cli.listings import list_experiments

if TYPE_CHECKING:
    from coterie.lab.papers.campaign import Campaign
    from coterie.lab.papers.laboratory import Laboratory


def reproduce(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of an experiment. Without a name, list all.")] = "",
    data: Annotated[str, typer.Option(help="Only these data sets, separated by commas (default: all).")] = "",
    degree: Annotated[str, typer.Option(help="Only these degrees of personalization (default: all).")] = "",
    methods: Annotated[str, typer.Option(help="Only these methods (default: all).")] = "",
    scale: Annotated[str, typer.Option(help="full is the size of the paper; small takes minutes.")] = "small",
    seeds: Annotated[int, typer.Option(min=1, help="Number of runs per cell, each with its own seed.")] = 1,
    out: Annotated[
        Path | None, typer.Option(callback=home, help="Folder for the runs (default: runs/reproduce/NAME-SCALE).")
    ] = None,
    changes: Changes = None,
    target: Annotated[
        float | None,
        typer.Option(
            min=0, max=100, help="Accuracy in percent to count rounds and bytes to (default: what all reach)."
        ),
    ] = None,
    only_table: Annotated[
        bool, typer.Option("--only-table", help="Run nothing: show what is measured already.")
    ] = False,
) -> None:
    """Run what is still missing of a table or figure of a paper, and compare published with measured results."""
    from coterie import registry
    from coterie.errors import UserError
    from coterie.lab.papers.campaign import Campaign
    from coterie.lab.papers.laboratory import Laboratory

    if not name:
        list_experiments()
        return
    options = {"data": data, "degree": degree, "method": methods}
    wanted = {axis: [value.strip() for value in values.split(",")] for axis, values in options.items() if values}
    folder = out or Path("runs", "reproduce", f"{name}-{scale}")
    kind = registry.load("experiment", name)
    arguments = (name, wanted, scale, seeds, folder, changes or [])
    if issubclass(kind, Laboratory):
        if target is not None:
            raise UserError(f"{name} has no --target, because it does not compare accuracies; omit it")
        laboratory = kind(*arguments)
        run, report = partial(_measure_missing, laboratory), laboratory.report
    else:
        campaign = Campaign(*arguments, target)
        run, report = partial(_run_missing, campaign), lambda: [campaign.report()]
    if not only_table:
        interrupted = on_interrupt()
        try:
            run(interrupted)
        except KeyboardInterrupt:
            screen.print("Stopped. Run the same command again to continue.", highlight=False)
            raise typer.Exit(exit_code(interrupted)) from None
    for table in report():
        Console().print(table.printed(), highlight=False)
    for file in ("table.md", "page.html", "figure.svg"):
        if (folder / file).exists():
            Console().print(f"{folder}/{file}", highlight=False, soft_wrap=True, markup=False)


def _run_missing(campaign: "Campaign", interrupted: list[int]) -> None:
    from coterie.lab.papers.campaign import estimate_table
    from coterie.report.words import things
    from coterie.track.bars import RunProgress

    missing = campaign.missing()
    if not missing:
        return
    with screen.status(f"timing one round of {things(len(missing), 'cell')}"):
        estimates = list(campaign.estimates(missing, lambda: bool(interrupted)))
    screen.print(estimate_table(estimates).printed(), highlight=False)
    for n, cell in enumerate(missing, 1):
        logger.info("%s (%d of %d)", cell.name, n, len(missing))
        training = campaign.training(cell)
        with RunProgress(screen, training.clients, training.rounds, quiet=False) as progress:
            campaign.play(cell, training, progress.advance, lambda: bool(interrupted))


def _measure_missing(laboratory: "Laboratory", interrupted: list[int]) -> None:
    missing = laboratory.missing()
    for n, each in enumerate(missing, 1):
        with screen.status(f"{each.name} ({n} of {len(missing)})"):
            laboratory.measure(each, lambda: bool(interrupted))
