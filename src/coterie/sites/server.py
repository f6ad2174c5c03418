"""The server of real sites: from the sites that are there to a run that is ready to start.

1.  ask each site what it has                       hello
2.  announce the work that follows from it          announce
3.  leave out sites whose policy refuses, and announce again to the others, until all that are left have accepted
"""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Any, NamedTuple

import torch

from coterie.clients.announcement import Announcement
from coterie.clients.sites import Facts, Patience, Sites, counts_in
from coterie.clients.transport import Failure, Transport
from coterie.clients.wire import BadMessageError, Message, decode, encode, shown
from coterie.clients.work import Work
from coterie.core.method import Calibrates
from coterie.core.objective import Classification, Objective, Regression
from coterie.core.tree import Tree, digest
from coterie.errors import StoppedError, UserError
from coterie.prepare import Prepared, check_names, rounds_of
from coterie.recipe import Recipe
from coterie.server.participation import Fixed
from coterie.server.population import PopulationSettings
from coterie.sites.beginning import Beginning
from coterie.sites.facts import Known, check_alike, kind_of, read_facts
from coterie.sites.presence import Reachable
from coterie.storage.origin import Origin

logger = logging.getLogger("coterie")

_LARGEST = 1e30
"""Largest number that a site can have measured."""
EVERYONE = 1_000_000_000
"""Number of clients per round that takes all sites, also those that join later."""
PAUSE = 2.0
"""Seconds between two questions to a site at which a person has to decide."""


class Asking(NamedTuple):
    """What sites are asked to take part in."""

    recipe: Recipe
    patience: Patience
    wait: float = 0.0
    """Seconds to wait for the decisions of people at the sites."""
    scores: bool = True
    """Whether sites are asked for scores of their models."""

    @property
    def seconds(self) -> float:
        """Time for the answers to questions outside of rounds."""
        return max(self.wait, self.patience.seconds)


class Ready(NamedTuple):
    """A run with real sites before its first round."""

    asking: Asking
    prepared: Prepared[Sites]
    origin: Origin
    began: Beginning


def gather(asking: Asking, transport: Transport, names: Sequence[str], began: Beginning | None = None) -> Ready:
    """Ask the named sites to take part in a run, and prepare it with those that accept.

    The sections [data] and [partition] of the recipe are not used: sites have their own data.

    Args:
        asking: what the sites are asked.
        transport: the way to the sites.
        names: the sites that are connected.
        began: for a resumed run, what its sites said when it began. Those that are not named are absent until they are
            connected. Without what they said, all of them have to be named.
    """
    asking = asking._replace(recipe=_deployed(asking.recipe))
    known = _hello(transport, names, asking.seconds)
    if began is not None:
        began.check_same(known)
        known = dict(sorted({**began.known, **known}.items()))
    while True:
        check_alike(known)
        ready = _prepared(asking, transport, known, set(names), began or Beginning())
        refused = _announce(ready, transport, asking, [name for name in names if name in known])
        if not refused:
            return ready
        if began is not None:
            raise StoppedError(
                f"{', '.join(refused)} did not accept the run that is resumed. Nothing has changed. Ask the operator "
                "there and resume it again, or resume it while the site is off, without it"
            )
        known = {name: each for name, each in known.items() if name not in refused}
        if not known:
            name, why = next(iter(refused.items()))
            raise UserError(f"no site takes part in this run; {name}: {why}")


def _deployed(recipe: Recipe) -> Recipe:
    """Return the recipe as real sites need it."""
    if recipe.population != PopulationSettings():
        raise UserError("[population] simulates clients that come and go, which real sites do by themselves; remove it")
    if recipe.engine.kind == "ray":
        raise UserError('engine.kind = "ray" is for simulations; remove it')
    run = replace(recipe.run, checkpoint_every=1)  # so that no round has to be repeated that sites have kept
    return replace(recipe, data=None, partition=None, run=run)


def _prepared(
    asking: Asking, transport: Transport, known: Mapping[str, Known], there: set[str], began: Beginning
) -> Ready:
    recipe, patience = asking.recipe, asking.patience
    announcement = _announcement(recipe, known)
    work = announcement.work(torch.device("cpu"))
    announcement, work, measured = _calibrated(asking, announcement, work, transport, known, there, began)
    facts = {name: each.facts for name, each in known.items()}
    origin: list[Origin] = []
    clients = Sites(
        facts, announcement.classes, work, recipe.aggregate, transport, patience, run=lambda: origin[0].run,
        scores=asking.scores,
    )  # fmt: skip
    origin.append(
        Origin(recipe.as_dict(), {"federation": clients.fingerprint(), "initial model": digest(work.task.initial)})
    )
    check_names(recipe.method, clients.ids)
    terms, began = _terms(asking, announcement, work, origin[0].run), Beginning(known, measured)

    def join(name: str) -> Facts | None:
        return _joined(name, transport, asking, terms, announcement)

    def back(name: str) -> None:
        _asked_later(name, transport, asking, terms, began.check_same)

    missing = known.keys() - there
    rounds = rounds_of(recipe, work, clients, Reachable(clients, transport, patience, join, missing, back))
    if recipe.run.participation == "fixed" and recipe.run.clients_per_round is None:
        rounds.participation = Fixed(EVERYONE)
    return Ready(asking, Prepared(announcement, clients, rounds), origin[0], began)


def _joined(
    name: str, transport: Transport, asking: Asking, terms: Mapping[str, Any], announcement: Announcement
) -> Facts | None:
    """Ask a site that has come later to take part. Returns what it has, or None if it does not fit or refuses."""
    if asking.recipe.run.participation == "unequal":
        return None  # there is no probability for it

    def check(told: Mapping[str, Known]) -> None:
        (known,) = told.values()
        unknown = set(known.facts.labels or ()) - set(announcement.classes)
        kind = kind_of(announcement.inputs, announcement.classes)
        if kind_of(known.inputs, known.facts.labels) != kind or unknown:
            raise UserError(f"{name} has inputs or labels that no other site has")

    try:
        return _asked_later(name, transport, asking, terms, check)
    except (UserError, StoppedError) as error:
        logger.warning("%s; it takes no part in this run", error)
        return None


def _asked_later(
    name: str, transport: Transport, asking: Asking, terms: Mapping[str, Any], check: Callable[[dict[str, Known]], None]
) -> Facts:
    """Ask a site in the middle of a run what it has, and to take part. Raises UserError or StoppedError if not."""
    told = _hello(transport, [name], asking.patience.seconds)
    check(told)
    (answer,) = _ask(transport, {name: encode("announce", terms)}, None, asking.patience.seconds).values()
    if answer.kind != "accepted":
        raise UserError(f"{name}: {_why(answer)}")
    return told[name].facts


def _hello(transport: Transport, names: Sequence[str], seconds: float) -> dict[str, Known]:
    """Ask each site what it has."""
    told = _ask(transport, dict.fromkeys(names, encode("hello", {})), "facts", seconds)
    return {name: read_facts(name, message.head) for name, message in sorted(told.items())}


def _announcement(recipe: Recipe, known: Mapping[str, Known]) -> Announcement:
    labels = recipe.method.labels if recipe.model.labels == "auto" else recipe.model.labels
    classes = tuple(sorted({label for each in known.values() for label in each.facts.labels or ()}))
    largest = max(len(each.facts.labels or ()) for each in known.values())
    inputs = next(iter(known.values())).inputs
    if inputs.tokens is not None:
        ranges = [each.inputs.tokens for each in known.values() if each.inputs.tokens]
        inputs = replace(inputs, tokens=(min(low for low, _ in ranges), max(high for _, high in ranges)))
    return Announcement(
        method=recipe.method,
        model=recipe.model,
        labels=labels,
        classes=classes,
        num_outputs=max(1, len(classes) if labels == "global" else largest),
        inputs=inputs,
        objective=Classification() if classes else _regression(known),
        seed=recipe.run.seed,
        dtype=recipe.engine.dtype,
    )


def _regression(known: Mapping[str, Known]) -> Objective:
    """Return the objective of numbers, scaled by the variance of the training targets of all sites that train."""
    parts = [
        (each.facts.splits["train"], each.targets) for each in known.values() if each.targets and not each.facts.is_new
    ]
    total = sum(size for size, _ in parts)
    mean = math.fsum(size * told["mean"] for size, told in parts) / total
    squares = math.fsum(told["squares"] + size * (told["mean"] - mean) ** 2 for size, told in parts)
    return Regression(squares / total or 1.0)


def _calibrated(
    asking: Asking,
    announcement: Announcement,
    work: Work,
    transport: Transport,
    known: Mapping[str, Known],
    there: set[str],
    began: Beginning,
) -> tuple[Announcement, Work, Mapping[str, Any]]:
    """Fill in hyper-parameters that theory computes from numbers of each site, and return these numbers as well."""
    method = work.method
    if not isinstance(method, Calibrates) or method.is_calibrated:
        return announcement, work, {}
    training = [name for name, each in known.items() if not each.facts.is_new]
    request = encode("measure", _terms(asking, announcement, work, ""))
    asked = [name for name in training if name in there]
    found, refused = _decisions(asked, request, "measured", transport, asking)
    if refused:
        name, why = next(iter(refused.items()))
        raise UserError(f"the method needs numbers of every site, and {name} refuses: {why}")
    numbers = {**began.measured, **{name: found[name].head.get("numbers") for name in asked}}
    measured = {name: numbers[name] for name in training}
    method = _calibrate(method, measured)
    return replace(announcement, method=method), replace(work, method=method), measured


def _calibrate(method: Calibrates, numbers: Mapping[str, Any]) -> Calibrates:
    for name, told in numbers.items():
        values: list[Any] = list(told.values()) if isinstance(told, dict) else [told]
        if not all(type(value) in (int, float) and 0 <= value <= _LARGEST for value in values):
            raise UserError(f"the numbers that {name} has measured cannot be used: {shown(told)}")
    try:
        return method.calibrate(numbers)
    except (LookupError, ArithmeticError) as error:
        raise UserError(
            f"the numbers that the sites have measured cannot be used: {error!r}: {shown(numbers)}"
        ) from None


def _terms(asking: Asking, announcement: Announcement, work: Work, run: str) -> dict[str, Any]:
    """Return what a site needs to decide about a run, and to do its work."""
    return {
        "run": run,
        "announcement": announcement.to_json(),
        "asked": replace(announcement, method=asking.recipe.method).to_json()["method"],
        "initial": digest(work.task.initial),
        "rounds": asking.recipe.run.rounds,
        "scores": asking.scores,
        "adapt_steps": asking.recipe.eval.adapt_steps,
        "coterie": version("coterie"),
    }


def _announce(ready: Ready, transport: Transport, asking: Asking, names: Sequence[str]) -> dict[str, str]:
    """Announce the run to sites. Returns those that refuse it, with their reasons."""
    clients = ready.prepared.clients
    request = encode("announce", _terms(asking, ready.prepared.announcement, clients.work, ready.origin.run))
    _, refused = _decisions(names, request, "accepted", transport, asking)
    for name, why in refused.items():
        logger.warning("%s takes no part in this run: %s", name, why)
    return refused


def _decisions(
    names: Sequence[str], request: bytes, agrees: str, transport: Transport, asking: Asking
) -> tuple[dict[str, Message], dict[str, str]]:
    """Ask sites until each has decided. Returns the answers of those that agree, and the reasons of the others.

    `agrees` is the kind of the answer of a site that agrees.
    """
    waiting, agreed, refused = list(names), dict[str, Message](), dict[str, str]()
    until, told = time.monotonic() + asking.wait, set[str]()
    while waiting:
        found = _ask(transport, dict.fromkeys(waiting, request), None, asking.seconds)
        for name, message in found.items():
            if message.kind == agrees:
                agreed[name] = message
            elif message.kind != "waiting":
                refused[name] = _why(message)
        waiting = [name for name in waiting if name not in agreed and name not in refused]
        for name in sorted(set(waiting) - told):
            logger.info("%s: %s", name, _why(found[name]))
            told.add(name)
        if waiting and time.monotonic() > until:
            refused |= dict.fromkeys(waiting, f"nobody at the site decided within {asking.wait:.0f} s")
            break
        if waiting:
            time.sleep(PAUSE)
    return agreed, refused


class Welcomed(NamedTuple):
    """A site that has got a model of its own from a finished run."""

    name: str
    before: float | None
    """Share of right answers on its test examples before it adapted, if its policy permits to say so."""
    after: float | None


def welcome(
    ready: Ready, shared: Tree, transport: Transport, names: Sequence[str], told: Callable[[str], object]
) -> list[Welcomed]:
    """Give sites that took no part in a finished run a model of their own. Those that refuse are left out.

    `told` is called with a sentence about each of these.
    """
    clients, recipe, seconds = ready.prepared.clients, ready.asking.recipe, ready.asking.patience.seconds
    terms = encode("announce", _terms(ready.asking, ready.prepared.announcement, clients.work, ready.origin.run))
    head = {"run": ready.origin.run, "adapt": recipe.eval.adapt_steps, "round": recipe.run.rounds}
    request = encode("personalize", head, shared=shared)
    welcomed = []
    for name in names:
        try:
            (answer,) = _ask(transport, {name: terms}, None, seconds).values()
            if answer.kind == "accepted":
                (answer,) = _ask(transport, {name: request}, None, seconds).values()
        except (UserError, StoppedError) as error:
            told(str(error))
            continue
        if answer.kind == "personalized":
            before, after = (counts_in(answer.head, when) for when in ("before", "after"))
            welcomed.append(Welcomed(name, _share(before), _share(after)))
        else:
            told(f"{name}: {_why(answer)}")
    return welcomed


def _share(counts: Mapping[str, float] | None) -> float | None:
    return counts["right"] / counts["examples"] if counts and counts["examples"] else None


def _ask(transport: Transport, requests: Mapping[str, bytes], kind: str | None, seconds: float) -> dict[str, Message]:
    """Return the answers of all sites.

    Raises StoppedError if one is missing, and UserError if one is not of the kind that is asked for.
    """
    found = {}
    for name, answer in transport.ask(requests, seconds):
        if isinstance(answer, Failure):
            raise StoppedError(f"{name} cannot be asked: {answer.reason}")
        try:
            message = decode(answer)
        except BadMessageError as error:
            raise UserError(f"the answer of {name} cannot be read: {error}") from None
        if kind is not None and message.kind != kind:
            raise UserError(f"{name} answers: {_why(message)}")
        found[name] = message
    return found


def _why(message: Message) -> str:
    return shown(message.head.get("why") or f"it answered {message.kind!r}")
