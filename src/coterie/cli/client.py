"""The commands `coterie client` and its subcommands: a site, its log and its decisions."""

import contextlib
import os
import signal
import threading
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from coterie.cli.common import complain, home, logger
from coterie.errors import UserError

client_app = typer.Typer(
    help="Take part in runs with the data of this site, or look at what left it.", invoke_without_command=True
)
REPLIES = 5.0
"""Seconds after which a site that has its model ends, so that its last reply leaves."""
StateOption = Annotated[
    Path, typer.Option("--state", callback=home, metavar="DIR", help="Folder in which the site keeps what is its own.")
]
ExposedOption = Annotated[
    bool,
    typer.Option(
        "--exposed-without-tls",
        help="With --insecure, connect to another machine. Everyone in between can read and change all messages.",
    ),
]
DigestArgument = Annotated[str, typer.Argument(metavar="DIGEST", help="First digits of the digest of the run.")]


@client_app.callback()
def client(
    context: typer.Context,
    server: Annotated[str, typer.Option(metavar="HOST:PORT", help="Address of the server.")] = "",
    name: Annotated[str, typer.Option(help="Name of the site, as the server lists it.")] = "",
    data: Annotated[
        Path | None,
        typer.Option(callback=home, metavar="PATH", help="Data of the site: an npz, CSV or Parquet file, or images."),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(callback=home, metavar="DIR", help="Folder in which the site keeps what is its own."),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(callback=home, metavar="FILE", help="Private key of the site (default: NAME.key)."),
    ] = None,
    ca: Annotated[Path | None, typer.Option(callback=home, metavar="FILE", help="The server's ca.crt.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Use no TLS, as the server on this machine.")] = False,
    exposed: ExposedOption = False,
    is_new: Annotated[
        bool, typer.Option("--new", help="Take no part in training: be a new user, who only gets the final model.")
    ] = False,
    personalize: Annotated[
        bool, typer.Option("--personalize", help="Get a model of this site's own from a finished run, and end.")
    ] = False,
    restored: Annotated[
        bool,
        typer.Option(
            "--restored",
            help="Continue with the state in DIR even if the server expects another one, after a backup was restored.",
        ),
    ] = False,
    label: Annotated[str, typer.Option(help="Column of a table that holds the label.")] = "y",
    split: Annotated[
        str | None,
        typer.Option(help="Column of a table that says train, test or validation (default: a random split)."),
    ] = None,
    features: Annotated[
        list[str] | None, typer.Option("--feature", help="Feature column of a table. Repeatable (default: all others).")
    ] = None,
    regression: Annotated[bool, typer.Option("--regression", help="The labels are numbers to predict.")] = False,
    test: Annotated[float, typer.Option(help="Share of the examples for testing, if the data have no split.")] = 0.25,
    validation: Annotated[float, typer.Option(help="Share of the examples for validation.")] = 0.0,
    group: Annotated[
        str | None,
        typer.Option(help="Group of the user who runs `coterie courier`. This command then starts no courier."),
    ] = None,
    socket: Annotated[
        Path | None,
        typer.Option(
            callback=home, metavar="FILE", help="Socket for the courier, in a folder of its own (with --group)."
        ),
    ] = None,
) -> None:
    """Take part in runs of a server, until Ctrl-C. The data and the personal state never leave this site."""
    if context.invoked_subcommand is not None:
        return
    if not name or data is None or state is None or not (server or group):
        raise UserError(
            "give --server HOST:PORT, --name NAME, --data PATH and --state DIR; see `coterie client --help`"
        )
    if (group is None) != (socket is None):
        raise UserError("--group and --socket belong together: the courier's user cannot reach a socket inside --state")
    secret = key or Path(f"{name}.key")
    if group is None:
        _check_connection(server, secret, ca, insecure, exposed)
    from coterie.data.own.folder import from_one
    from coterie.sites.agent import Agent
    from coterie.sites.names import check_name
    from coterie.sites.socket import serve

    own = from_one(
        check_name(name), data, label=label, split=split, features=features, regression=regression, test=test,
        validation=validation,
    )  # fmt: skip
    agent = Agent(name, own, state, is_new or personalize)
    agent.restored = restored
    logger.info("%s: %s", name, own)
    socket = socket or state / "socket" / "site.sock"
    if group is not None:
        logger.info("waiting for a courier at %s", socket)
        serve(socket, agent.answer, group)
        return
    from coterie.sites.couriers import Courier

    courier = Courier(
        server, secret, socket, state / "courier", ca, on_end=lambda: os.kill(os.getpid(), signal.SIGTERM)
    )
    done: list[bool] = []
    if personalize:

        def leave() -> None:
            done.append(True)
            threading.Timer(REPLIES, os.kill, (os.getpid(), signal.SIGTERM)).start()

        agent.on_model = leave
    with courier:
        serve(socket, agent.answer)
    if courier.verdict:
        complain("error", courier.verdict)
        raise typer.Exit(2)
    if done:
        logger.info("the model of this site is in %s", state)
        return
    logger.info("stopped; start the same command again to continue")


def courier(
    server: Annotated[str, typer.Option(metavar="HOST:PORT", help="Address of the server.")],
    key: Annotated[Path, typer.Option(callback=home, metavar="FILE", help="Private key of the site.")],
    socket: Annotated[
        Path, typer.Option(callback=home, metavar="FILE", help="The socket that `coterie client --group` shows.")
    ],
    state: Annotated[Path, typer.Option(callback=home, metavar="DIR", help="Folder of the courier's own.")],
    ca: Annotated[Path | None, typer.Option(callback=home, metavar="FILE", help="The server's ca.crt.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Use no TLS, as the server on this machine.")] = False,
    exposed: ExposedOption = False,
) -> None:
    """Carry messages between a server and a `coterie client --group`, as a user who cannot read the site's data."""
    _check_connection(server, key, ca, insecure, exposed)
    from coterie.sites.couriers import Courier

    with contextlib.suppress(KeyboardInterrupt), Courier(server, key, socket, state, ca) as carrying:
        carrying.wait()
    if carrying.verdict:
        complain("error", carrying.verdict)
        raise typer.Exit(2)


def _check_connection(server: str, key: Path, ca: Path | None, insecure: bool, exposed: bool) -> None:
    """Raise UserError for what is wrong before any connection."""
    from coterie.clients.transport import is_loopback

    host, _, port = server.rpartition(":")
    if not host or not port.isdigit():
        raise UserError(f"the address of a server is HOST:PORT, for example fl.example.org:8443, not {server!r}")
    if insecure == (ca is not None):
        raise UserError("give either --ca FILE, the server's ca.crt, or --insecure to try things on this machine")
    if insecure and not exposed and not is_loopback(host.strip("[]")):
        raise UserError(f"without TLS, only this machine may be the server, not {host}: use --ca and its ca.crt")
    if ca is not None and not ca.is_file():
        raise UserError(f"there is no certificate {ca}; ask the operator of the server for ca.crt")
    if not key.is_file():
        raise UserError(f"there is no key {key}; make one with `coterie certs site NAME`, or name it with --key")


@client_app.command("log")
def log(state: StateOption) -> None:
    """Show every message that left the site."""
    from coterie.sites import sent

    rows = sent.table(state)
    if not rows:
        raise UserError(f"nothing has left the site with the state {state}; check --state")
    table = Table()
    for heading in sent.HEADINGS:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console().print(table)


@client_app.command("requests")
def requests(state: StateOption) -> None:
    """Show the runs that a person at the site was asked about."""
    from coterie.sites import policy

    asked = policy.requests(state)
    if not asked:
        raise UserError(f"no run has asked to be accepted at {state}")
    for request in asked:
        decision = {None: "waits", True: "accepted", False: "refused"}[request.accepted]
        _say(f"{request.digest}  {decision}")
        terms = request.terms
        _say(f"  {terms.method}, {terms.rounds:,} rounds, Coterie {terms.version}, asked {request.asked}")
        _say(
            f"  sends: {', '.join(map(str, terms.tensors)) or 'no tensors'}; scores: {'yes' if terms.scores else 'no'}"
        )


@client_app.command("accept")
def accept(digest: DigestArgument, state: StateOption) -> None:
    """Accept a run that asks to be accepted."""
    _decide(state, digest, True)


@client_app.command("refuse")
def refuse(digest: DigestArgument, state: StateOption) -> None:
    """Refuse a run, also one that was accepted before it was announced again."""
    _decide(state, digest, False)


def _decide(state: Path, digest: str, accepted: bool) -> None:
    from coterie.sites import policy

    decided = policy.decide(state, digest, accepted)
    _say(f"{'accepted' if accepted else 'refused'} {decided.digest}")


def _say(line: str) -> None:
    Console().print(line, highlight=False, soft_wrap=True, markup=False)
