"""The command `coterie local`: a server and some sites on this machine, for trying things out."""

import json
import shlex
import signal
import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.live import Live
from rich.table import Table

from coterie.cli.common import (
    Changes,
    RecipeArgument,
    exit_code,
    home,
    logger,
    next_free,
    on_interrupt,
    screen,
    show_run,
)
from coterie.errors import StoppedError, UserError

if TYPE_CHECKING:
    from coterie.sites.local import Local


EVERYONE = ("partition.new_users=0", "run.clients_per_round=")
"""Settings that let all sites train, in every round. They come before those of the user."""


def local(
    recipe: RecipeArgument,
    number: Annotated[int, typer.Option("--sites", min=1, help="Number of sites.")] = 5,
    changes: Changes = None,
    out: Annotated[
        Path | None, typer.Option(callback=home, help="Folder for everything (default: runs/local-N).")
    ] = None,
    resume: Annotated[Path | None, typer.Option(callback=home, help="Continue in this folder.")] = None,
    deadline: Annotated[float, typer.Option(min=1, metavar="SECONDS", help="Time for the replies of a round.")] = 600.0,
    hosts: Annotated[
        bool, typer.Option("--hosts", help="Give the server and each site a network of its own (Linux, root).")
    ] = False,
) -> None:
    """Start a server and some sites on this machine, each a process of its own, and train.

    The data of the recipe are divided among the sites. All sites take part in each round, unless --set says otherwise.
    """
    from coterie import recipe as recipes
    from coterie.clients import flower_version
    from coterie.sites.hosts import Hosts
    from coterie.sites.local import Local
    from coterie.storage.folder import read_summary

    if resume is not None and out is not None:
        raise UserError("--resume continues in its own folder; omit --out")
    flower_version.check()
    asked = [*EVERYONE, *(changes or []), f"partition.clients={number}"]
    settings = recipes.read(recipes.load(recipe), asked)
    folder = resume or out or next_free(Path("runs"), "local")
    if resume is None and folder.exists() and any(folder.iterdir()):
        raise UserError(
            f"{folder} exists and is not empty; choose another --out, or continue it with --resume {folder}"
        )
    received = on_interrupt()
    federation = settings.federation()
    with ExitStack() as stack:
        apart = stack.enter_context(Hosts(federation.ids)) if hosts else None
        made = stack.enter_context(Local(folder, federation, _free_port(), apart))
        if resume is None:
            made.prepare()
        else:
            made.check_prepared()
        arguments = ["--json", "--wait", "120", "--deadline", str(deadline)]
        if not (made.run / "recipe.toml").exists():
            arguments += ["--recipe", _stored(settings.as_dict(), folder)]
        made.start(arguments)
        logger.info("%d sites and a server in %s", number, folder)
        _watch(made, settings.run.rounds, received)
    if received:
        again = ["local", recipe, "--sites", str(number), *(f"--set={change}" for change in changes or [])]
        command = shlex.join(["coterie", *again, "--resume", str(folder), *(["--hosts"] if hosts else [])])
        screen.print(f"Stopped. To continue:\n  {command}", highlight=False, soft_wrap=True, markup=False)
        raise typer.Exit(exit_code(received))
    summary = read_summary(made.run)
    assert summary is not None
    show_run(summary, made.run, False)


def _stored(tree: dict[str, object], folder: Path) -> str:
    """Write the recipe without its data, which the sites have, and return its path."""
    import tomli_w

    from coterie.storage.files import write_atomically

    path = folder / "recipe.toml"
    told = {name: table for name, table in tree.items() if name not in ("data", "partition")}
    write_atomically(path, tomli_w.dumps(told).encode())
    return str(path)


def _watch(made: "Local", rounds: int, received: Sequence[int]) -> None:
    """Show what happens until the server ends. A signal makes it stop after the current round."""
    from coterie.sites.local import last_words

    assert made.server is not None
    checked = stopping = False
    with Live(console=screen, refresh_per_second=2, transient=not screen.is_terminal) as live:
        while made.server.poll() is None:
            live.update(_table(made, rounds))
            if received and not stopping:
                made.server.send_signal(signal.SIGTERM)
                stopping = True
            if not received:
                made.check()
            if made.hosts and not checked and (made.run / "rounds.jsonl").exists():
                for sentence in made.hosts.check(made.port):
                    logger.info("%s", sentence)
                checked = True
            time.sleep(0.5)
        live.update(_table(made, rounds))
    if made.server.returncode and not received:
        raise StoppedError(f"the server has ended: {last_words(made.folder / 'server.log')}")


def _table(made: "Local", rounds: int) -> Table:
    table = Table(title=_progress(made.run, rounds))
    for heading in ("site", "process", "messages sent", "bytes sent"):
        table.add_column(heading)
    for name, process in made.sites.items():
        sizes = [int(line["bytes"]) for line in _lines(made.site(name) / "sent.jsonl")]
        ended = process.poll()
        state = "runs" if ended is None else f"ended with code {ended}"
        table.add_row(name, state, f"{len(sizes):,}", f"{sum(sizes):,}")
    return table


def _progress(run: Path, rounds: int) -> str:
    lines = _lines(run / "rounds.jsonl")
    if not lines:
        return "sites connect, and are told about the run"
    loss = lines[-1]["train_loss"]
    return f"round {len(lines):,} of {rounds:,}" + ("" if loss is None else f", loss {loss:.4f}")


def _lines(file: Path) -> list[dict[str, Any]]:
    """Return what is in the whole lines of a log that another process may be writing."""
    whole = file.read_bytes().rpartition(b"\n")[0].splitlines() if file.exists() else []
    return [json.loads(line) for line in whole]


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
