"""The commands."""

import json
import logging
import shlex
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.logging import RichHandler
from rich.markup import escape
from rich.table import Table

from coterie.errors import DivergedError, UserError

if TYPE_CHECKING:
    from coterie.experiments.campaign import Campaign
    from coterie.experiments.laboratory import Laboratory

app = typer.Typer(
    help="Personalized federated learning.", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
)
data_app = typer.Typer(help="Fetch and look at data sets.", no_args_is_help=True)
app.add_typer(data_app, name="data")
screen = Console(stderr=True)
logger = logging.getLogger("coterie")

RecipeArgument = Annotated[str, typer.Argument(help="A TOML file, or a name from `coterie recipes`.")]
DataArgument = Annotated[str, typer.Argument(metavar="NAME", help="A name from `coterie datasets`.")]
Changes = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the recipe.")]


@app.command()
def run(
    recipe: RecipeArgument = "",
    changes: Changes = None,
    out: Annotated[Path | None, typer.Option(help="The run folder; runs/NAME-N unless given.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the run in this folder.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print summary.json and nothing else.")] = False,
) -> None:
    """Train a federation: RECIPE, or the default on embedded data."""
    from coterie import recipe as recipes
    from coterie.folder import read_recipe
    from coterie.progress import RunProgress
    from coterie.report.table import closing_table, cost_line
    from coterie.training import Training

    if resume is not None and out is not None:
        raise UserError("--resume goes on in its own folder; leave --out away")
    if resume is not None:
        read_recipe(resume)
    source = recipe or (resume / "recipe.toml" if resume is not None else "digits")
    settings = recipes.read(source, changes or [])
    federation = settings.federation()
    names = {section: table.get("name") for section, table in settings.as_dict().items()}
    folder = resume or out or _next_free(Path("runs"), f"{names['data']}-{names['method']}")
    training = Training(settings, federation, folder, resume=resume is not None)
    logger.info("%s on %s: %s", names["method"], names["data"], federation)
    interrupted = _on_interrupt()
    simulation = training.simulation
    done, score = len(simulation.history), simulation.setup.task.objective.score
    with RunProgress(screen, settings.run.rounds, done, score, quiet=as_json) as progress:
        try:
            result = training.play(progress.advance, lambda: bool(interrupted))
        except KeyboardInterrupt:
            progress.stop()
            command = shlex.join([sys.argv[0], "run", "--resume", str(folder)])
            screen.print(f"Stopped. Go on with:\n  {command}", highlight=False, soft_wrap=True, markup=False)
            raise typer.Exit(130) from None
    if as_json:
        sys.stdout.write(json.dumps(result.summary, indent=2) + "\n")
    else:
        Console().print(closing_table(result.summary))
        Console().print(cost_line(result.summary), highlight=False)
        Console().print(f"{folder}/report.html", highlight=False, soft_wrap=True, markup=False)


@app.command("methods")
def list_methods() -> None:
    """The methods there are, with their settings."""
    _listing("methods")


@app.command("datasets")
def list_datasets() -> None:
    """The data sets there are."""
    _listing("data")


@app.command("partitions")
def list_partitions() -> None:
    """The ways to deal a data set to clients."""
    _listing("partition")


@app.command("models")
def list_models() -> None:
    """The networks there are."""
    _listing("models")


@data_app.command("fetch")
def fetch_data(name: DataArgument, changes: Changes = None) -> None:
    """Download a data set, unless its files are at hand, and say where they are."""
    from coterie import recipe as recipes

    files = recipes.read({"data": {"name": name}}, changes or []).dataset().files()
    for line in map(str, files) if files else [f"{name}: nothing to fetch"]:
        Console().print(line, highlight=False, soft_wrap=True, markup=False)


@data_app.command("show")
def show_data(
    name: DataArgument,
    changes: Changes = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The same as an HTML page; none unless given.")
    ] = None,
) -> None:
    """Count a data set's examples, classes and groups, and those of each client once it is dealt."""
    from coterie import recipe as recipes
    from coterie.data import census
    from coterie.data.describe import dealt, described
    from coterie.report.data_page import data_page

    settings = recipes.read({"data": {"name": name}}, changes or [])
    examples = settings.dataset().load()
    Console().print(described(examples), "")
    federation, problem = None, ""
    try:
        federation = settings.deal(examples)
        Console().print(dealt(federation))
    except UserError as error:
        problem = str(error)
        Console().print(f"Not dealt to clients: {problem}", highlight=False, markup=False)
    if out is not None:
        tree = settings.as_dict()
        dealing = {"data": tree["data"], "partition": tree["partition"], "run": {"seed": settings.run.seed}}
        clients = None if federation is None else census.of_clients(federation)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(data_page(dealing, census.of_examples(examples), clients, problem), encoding="utf-8")
        Console().print(str(out), highlight=False, soft_wrap=True, markup=False)


@app.command("recipes")
def list_recipes() -> None:
    """The recipes that come with Coterie."""
    from coterie.recipe import available

    table = Table("name", "what it runs")
    for name, path in available().items():
        table.add_row(name, path.read_text().splitlines()[0].removeprefix("#").strip())
    Console().print(table)


@app.command()
def reproduce(
    name: Annotated[str, typer.Argument(metavar="NAME", help="An experiment, like pflego-table1.")],
    data: Annotated[str, typer.Option(help="Some of its data sets, separated by commas; all unless given.")] = "",
    degree: Annotated[str, typer.Option(help="Some of its degrees of personalization.")] = "",
    methods: Annotated[str, typer.Option(help="Some of its methods.")] = "",
    scale: Annotated[str, typer.Option(help="full is the paper's; small is minutes.")] = "small",
    seeds: Annotated[int, typer.Option(min=1, help="So many runs of each cell.")] = 1,
    out: Annotated[Path | None, typer.Option(help="For the runs; runs/reproduce/NAME-SCALE unless given.")] = None,
    changes: Changes = None,
    only_table: Annotated[bool, typer.Option("--only-table", help="Run nothing.")] = False,
) -> None:
    """Run what is missing of a paper's table or figure; published and measured side by side."""
    from coterie import registry
    from coterie.experiments.campaign import Campaign
    from coterie.experiments.laboratory import Laboratory

    options = {"data": data, "degree": degree, "method": methods}
    wanted = {axis: [value.strip() for value in values.split(",")] for axis, values in options.items() if values}
    folder = out or Path("runs", "reproduce", f"{name}-{scale}")
    kind = registry.load("experiments", name)
    arguments = (name, wanted, scale, seeds, folder, changes or [])
    work = kind(*arguments) if issubclass(kind, Laboratory) else Campaign(*arguments)
    if not only_table:
        try:
            _measure_missing(work) if isinstance(work, Laboratory) else _run_missing(work)
        except KeyboardInterrupt:
            screen.print("Stopped. Run the same command again to go on.", highlight=False)
            raise typer.Exit(130) from None
    tables = work.report() if isinstance(work, Laboratory) else [work.report()]
    for table in tables:
        Console().print(table.printed(), highlight=False)
    made = ["table.md", "page.html"] if isinstance(work, Laboratory) else ["table.md"]
    for file in made:
        Console().print(f"{folder}/{file}", highlight=False, soft_wrap=True, markup=False)


@app.command()
def bench(
    letters: Annotated[list[str] | None, typer.Argument(help="Which of A to F; all unless given.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Turns that each variant has; figures are medians.")] = 5,
    out: Annotated[Path, typer.Option(help="The folder for LETTER.json.")] = Path("bench"),
) -> None:
    """Measure speed and memory, as ratios taken in one run, beside their targets."""
    from coterie.benchmarks.suite import choose, measure

    for letter in choose(letters or []):
        result = measure(letter, repeats)
        Console().print(result.printed(), highlight=False)
        result.write(out / f"{letter}.json")


def main() -> None:
    """Entry point: a mistake of the user's is told in a line or two, with exit code 2."""
    logger.setLevel(logging.INFO)
    logger.addHandler(RichHandler(console=screen, show_time=False, show_path=False, show_level=False))
    try:
        app()
    except UserError as error:
        _stop("error", error, 2)
    except (DivergedError, OSError) as error:
        _stop("stopped", error, 1)


def _stop(word: str, error: Exception, code: int) -> NoReturn:
    screen.print(f"[bold red]{word}:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
    sys.exit(code)


def _listing(kind: str) -> None:
    import dataclasses

    from coterie import registry

    table = Table("name", "what it is", "settings")
    for name in registry.names(kind):
        component: Any = registry.load(kind, name)
        options = [f"{field.name} = {_default(field)}" for field in dataclasses.fields(component)]
        table.add_row(name, (component.__doc__ or "").partition("\n")[0], "\n".join(options))
    Console().print(table)


def _run_missing(campaign: "Campaign") -> None:
    from coterie.experiments.campaign import estimate_table
    from coterie.progress import RunProgress

    missing = campaign.missing()
    if not missing:
        return
    interrupted = _on_interrupt()
    with screen.status(f"timing a round of each of {len(missing)} cells"):
        estimates = list(campaign.estimates(missing, lambda: bool(interrupted)))
    screen.print(estimate_table(estimates).printed(), highlight=False)
    for n, cell in enumerate(missing, 1):
        logger.info("%s (%d of %d)", cell.name, n, len(missing))
        training = campaign.training(cell)
        done, score = len(training.simulation.history), training.simulation.setup.task.objective.score
        with RunProgress(screen, cell.recipe.run.rounds, done, score, quiet=False) as progress:
            campaign.play(cell, training, progress.advance, lambda: bool(interrupted))


def _measure_missing(laboratory: "Laboratory") -> None:
    missing, interrupted = laboratory.missing(), _on_interrupt()
    for n, each in enumerate(missing, 1):
        with screen.status(f"{each.name} ({n} of {len(missing)})"):
            laboratory.measure(each, lambda: bool(interrupted))


def _default(field: Any) -> str:
    import dataclasses

    value = field.default_factory() if field.default is dataclasses.MISSING else field.default
    return json.dumps(value) if value is not None else "-"


def _next_free(parent: Path, name: str) -> Path:
    return next(path for n in range(1, 1_000_000) if not (path := parent / f"{name}-{n}").exists())


def _on_interrupt() -> list[int]:
    """The first Ctrl-C lets the round end and is remembered here; the second stops at once."""
    received: list[int] = []

    def remember(number: int, _: Any) -> None:
        received.append(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        screen.print("\nStopping after this round; Ctrl-C again to stop at once.", highlight=False)

    signal.signal(signal.SIGINT, remember)
    return received
