"""The command `coterie server`: a run with real sites."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coterie.cli.common import Changes, exit_code, home, logger, next_free, on_interrupt, screen, show_run
from coterie.errors import UserError

if TYPE_CHECKING:
    from coterie.clients.transport import Transport
    from coterie.core.tree import Tree
    from coterie.sites.roster import Roster
    from coterie.sites.server import Ready


def server(
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Address on which sites connect.")],
    recipe: Annotated[str, typer.Option(help="Path of a TOML file, or a name from `coterie recipes`.")] = "",
    changes: Changes = None,
    tls: Annotated[
        Path | None,
        typer.Option(callback=home, metavar="DIR", help="Folder of certificates, made by `coterie certs new`."),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Use no TLS. Only sites on this machine may then connect.")
    ] = False,
    exposed: Annotated[
        bool,
        typer.Option(
            "--exposed-without-tls",
            help="With --insecure, let other machines connect. Everyone in between can read and change all messages.",
        ),
    ] = False,
    listed: Annotated[
        Path | None,
        typer.Option(
            "--in", callback=home, metavar="DIR", help="Folder with the list of sites (default: that of --tls)."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(callback=home, help="Folder for the run (default: runs/sites-METHOD-N).")
    ] = None,
    resume: Annotated[Path | None, typer.Option(callback=home, help="Continue the run in this folder.")] = None,
    number: Annotated[
        int | None,
        typer.Option("--sites", min=1, help="Number of sites to begin with (default: all on the list)."),
    ] = None,
    wait: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Time for sites to connect and to accept the run.")
    ] = 600.0,
    deadline: Annotated[float, typer.Option(min=1, metavar="SECONDS", help="Time for the replies of a round.")] = 600.0,
    quorum: Annotated[
        float, typer.Option(min=0, max=1, help="Share of the cohort that has to reply, so that a round counts.")
    ] = 0.5,
    minimum: Annotated[
        int, typer.Option(min=1, help="Number of sites that have to be connected when a round begins.")
    ] = 1,
    scores: Annotated[
        bool, typer.Option("--scores/--no-scores", help="Whether sites are asked for scores of their models.")
    ] = True,
    serve: Annotated[
        bool, typer.Option("--serve", help="Stay when the run has ended, and give new sites a model of their own.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print only summary.json.")] = False,
) -> None:
    """Train with real sites, each of which runs `coterie client`. The recipe's sections about data are not used."""
    from coterie import recipe as recipes
    from coterie.clients.flower_server import FlowerTransport
    from coterie.clients.sites import Patience
    from coterie.sites import certs
    from coterie.sites.beginning import Left, sites_to_begin, sites_to_resume
    from coterie.sites.roster import FILE, Roster
    from coterie.sites.server import Asking, gather
    from coterie.storage.folder import SERVER
    from coterie.storage.origin import read_origin

    if insecure == (tls is not None):
        raise UserError("give either --tls DIR, or --insecure to try things on this machine")
    if resume is not None and out is not None:
        raise UserError("--resume continues in its own folder; omit --out")
    if not recipe and resume is None:
        raise UserError("give a recipe with --recipe, or a run with --resume")
    if resume is not None:
        read_origin(resume)
    settings = recipes.read(recipe or str(resume / "recipe.toml" if resume else ""), changes or [])
    if tls is not None:
        certs.check(tls)
    roster = Roster((listed or tls or Path()) / FILE)
    if not roster.names():
        raise UserError(
            f"{roster.path} lists no sites; add them with `coterie sites add NAME PUBFILE --in {roster.path.parent}`"
        )
    method = str(settings.as_dict()["method"]["name"])
    folder = resume or out or next_free(Path("runs"), f"sites-{method}")
    if resume is None and (folder / "recipe.toml").exists():
        raise UserError(f"{folder} already holds a run; choose another --out, or continue it with --resume {folder}")
    left = Left.of(resume) if resume else None
    interrupted = on_interrupt()
    transport = FlowerTransport(
        folder / SERVER, listen, tls, roster.keys,
        resume=resume is not None, exposed=exposed, told=lambda sentence: logger.info(sentence),
    )  # fmt: skip
    try:
        logger.info("listening on %s", transport.address)
        try:
            if left is None:
                names = sites_to_begin(transport, roster.names, number, wait, lambda: bool(interrupted))
            else:
                names = sites_to_resume(transport, roster.names, left, minimum, wait, lambda: bool(interrupted))
        except KeyboardInterrupt:
            raise typer.Exit(exit_code(interrupted)) from None
        asking = Asking(settings, Patience(deadline, quorum, minimum=minimum), wait, scores)
        ready = gather(asking, transport, names, left.began if left else None)
        if left is None or left.unreadable:
            ready.began.write(folder / SERVER, ready.origin.run)
        shared = _train(ready, folder, resume is not None, interrupted, as_json)
        if serve:
            _serve(ready, shared, transport, roster, interrupted)
    finally:
        transport.close()


def _train(ready: "Ready", folder: Path, resumed: bool, interrupted: Sequence[int], as_json: bool) -> "Tree":
    from coterie.track.bars import RunProgress
    from coterie.training import Training

    training = Training(ready.asking.recipe, ready.prepared, folder, resume=resumed)
    with RunProgress(screen, training.clients, training.rounds, quiet=as_json) as progress:
        try:
            result = training.play(progress.advance, lambda: bool(interrupted))
        except KeyboardInterrupt:
            progress.stop()
            screen.print(
                f"Stopped. To continue, repeat the command with --resume {folder} instead of --recipe and --out.",
                highlight=False, soft_wrap=True, markup=False,
            )  # fmt: skip
            raise typer.Exit(exit_code(interrupted)) from None
    show_run(result.summary, folder, as_json)
    return result.shared


def _serve(
    ready: "Ready",
    shared: "Tree",
    transport: "Transport",
    roster: "Roster",
    interrupted: Sequence[int],
) -> None:
    """Give new sites a model of their own, until Ctrl-C."""
    from coterie.sites.server import welcome

    logger.info("the run has ended; new sites can get a model with `coterie client --personalize`. Ctrl-C ends this")
    served, told = set(ready.prepared.clients.ids), set[str]()

    def tell(sentence: str) -> None:
        if sentence not in told:  # a site that refuses is asked again and again, and may change its mind
            told.add(sentence)
            logger.info("%s", sentence)

    while not interrupted:
        waiting = sorted((transport.connected() & set(roster.names())) - served)
        for each in welcome(ready, shared, transport, waiting, tell) if waiting else ():
            served.add(each.name)
            scores = (
                ""
                if each.after is None
                else f": {each.before or 0:.1%} right before it adapted, {each.after:.1%} after"
            )
            logger.info("%s has a model of its own%s", each.name, scores)
        time.sleep(1)
