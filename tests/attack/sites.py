"""Campaign `sites`: damaged files of a real site and of its server.

They are the folder of a site in the middle of a round and at the end of a run, the list of sites, keys and
certificates. Whoever reads them is told, or sees what was there before. Two exceptions are documented: a policy, which
people write, can be any other policy, and the log of what left a site can lose its end.
"""

import logging
import shutil
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import reference as ref
from attack.bits import STRIDE, _digest, damage_free
from attack.campaign import Campaign, Escape
from attack.damage import Damage, damages
from attack.folders import workspace
from coterie import load
from coterie.clients.wire import decode
from coterie.errors import UserError
from coterie.sites import certs, policy, sent
from coterie.sites.agent import Agent
from coterie.sites.roster import FILE, Roster
from sites.direct import Direct, deployed
from sites.test_equality import recipe

METHOD, SITE, ROUND = "ditto", "client-0", 3
"""The method and the site, and the round after whose reply the first copy of its folder is made."""
POLICY = 'mode = "accept-all"\nmethods = ["ditto"]\nmax_rounds = 100\nscores = true\n'


@cache
def made() -> tuple[Path, list[bytes]]:
    """Return a folder with all files that are damaged, and the requests that the site gets in the middle of a round."""
    ready, requests = workspace() / "sites", []
    federation = ref.federation((5, 3), new=0)

    def copied(name: str, request: bytes, answer: Callable[[bytes], bytes]) -> bytes:
        answered, asked = answer(request), decode(request)
        late = asked.kind == "update" and asked.head["round"]["index"] == ROUND
        if name == SITE and (late or (requests and asked.kind == "score" and len(requests) < 2)):
            requests.append(request)
            if late:
                shutil.copytree(folder / SITE, ready / "midway")
        return answered

    ready.mkdir()
    folder = workspace() / "sites-of-a-run"
    transport = Direct(federation, folder, copied)
    deployed(recipe(METHOD, clients_per_round=None, eval_every=1), transport)
    shutil.copytree(folder / SITE, ready / "ended")
    (ready / "ended" / policy.FILE).write_text('mode = "ask"\n')
    announced = next(request for kind, name, request, _ in transport.log if (kind, name) == ("announce", SITE))
    Agent(SITE, transport.own[SITE], ready / "ended").answer(announced)  # leaves a request
    for part in ("midway", "ended"):
        (ready / part / policy.FILE).write_text(POLICY)
    certs.new(ready / "tls", ["server.example.org"])
    for name in ("anna", "emil"):
        public = certs.site(ready / "keys", name).public.read_bytes()
        Roster(ready / "tls" / FILE).add(name, public)
    Roster(ready / "tls" / FILE).remove("emil")
    return ready, requests


@cache
def own() -> Any:
    """Return the data of the site."""
    return Direct(ref.federation((5, 3), new=0), workspace()).own[SITE]


def answers(folder: Path) -> Any:
    """Return how the site answers what it was asked last, and what follows."""
    agent, found = Agent(SITE, own(), folder / "midway"), []
    for request in made()[1]:
        answer = agent.answer(request)
        if (message := decode(answer)).kind == "failed":
            raise UserError(message.head["why"])
        found.append(answer)
    return _digest(found)


def model(folder: Path) -> Any:
    """Return the model of the site."""
    run = load(folder / "ended")
    return _digest([dict(sorted(run.shared.items())), dict(sorted(run.personal(SITE).items())), run.classes(SITE)])


def renewed(folder: Path) -> Any:
    """Return whom the certificates are for, also after they were renewed."""
    before, after = certs.describe(folder / "tls"), certs.renew(folder / "tls")
    return before.names, before.ca_fingerprint, after.names, after.ca_fingerprint


READERS: dict[str, Callable[[Path], Any]] = {
    "the site": answers,
    "coterie.load": model,
    "coterie client log": lambda folder: sent.read(folder / "ended"),
    "coterie client requests": lambda folder: policy.requests(folder / "ended"),
    "policy": lambda folder: policy.of_state(folder / "ended"),
    "coterie sites list": lambda folder: Roster(folder / "tls" / FILE).entries(),
    "coterie certs": renewed,
    "coterie sites add": lambda folder: certs.read_public_key(folder / "keys" / "anna.pub"),
}


@cache
def expected() -> dict[str, Any]:
    """Return what each reader sees in files that are not damaged."""
    folder = workspace() / "sites-seen"
    shutil.copytree(made()[0], folder)
    return {name: read(folder) for name, read in READERS.items()}


@cache
def all_damages() -> tuple[Damage, ...]:
    """Return every damage to every file."""
    files = [path for path in sorted(made()[0].rglob("*")) if path.is_file() and not path.name.endswith(".lock")]
    names = [str(path.relative_to(made()[0])) for path in files]
    return tuple(damages(made()[0], [name for name in names if not name.startswith("midway/sent")]))


def attempt(seed: int, folder: Path) -> str:
    """Damage one file, and read all of them."""
    damage = all_damages()[seed * STRIDE % len(all_damages())]
    told = []
    for name, read in READERS.items():
        out = folder / name.replace(" ", "-")
        shutil.copytree(made()[0], out)
        if not damage.to(out):
            return f"{damage}: nothing changes"
        told.append(_read(f"{damage}, {name}", name, read, out, damage))
    return f"{damage}: {', '.join(sorted(set(told)))}"


def _read(about: str, name: str, read: Callable[[Path], Any], out: Path, damage: Damage) -> str:
    try:
        seen = read(out)
    except UserError as error:
        if damage_free(str(error)):
            raise Escape(f"{about}: refuses without naming a file: {error}") from None
        return "refused"
    except Exception as error:
        raise Escape(f"{about}: {type(error).__name__}: {error}") from error
    if seen == expected()[name]:
        return "same"
    if damage.file.endswith(policy.FILE):
        return "another policy"
    fewer = isinstance(seen, Sequence) and len(seen) < len(expected()[name])
    if damage.kind == "lost" and fewer and not seen:
        return "missing"
    if name == "coterie client log" and damage.kind != "bit" and fewer and seen == expected()[name][: len(seen)]:
        return "without its end"
    raise Escape(f"{about}: something else, in silence: {str(seen)[:200]}")


def prepare() -> int:
    """Make the files and look at them."""
    logging.getLogger("coterie").addHandler(logging.NullHandler())  # keeps warnings of the site from the screen
    expected()
    return len(all_damages())


CAMPAIGN = Campaign(
    "sites",
    "damaged files of a real site and of its server: a reader refuses, or sees what was there before",
    attempt,
    prepare,
    5_000,
)
