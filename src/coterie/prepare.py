"""Preparing a run: from a federation and a recipe to clients and a server, before any work is done."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Generic, NamedTuple, TypeVar

import torch

from coterie import registry
from coterie.clients.announcement import Announcement, Inputs
from coterie.clients.choose import choose
from coterie.clients.clients import Clients
from coterie.clients.engine import Engine, reporting
from coterie.clients.machine import set_up
from coterie.clients.simulated import Simulated
from coterie.clients.work import Work
from coterie.clients.workload import Workload
from coterie.core.answers import planned
from coterie.core.method import Calibrates, Method, Round
from coterie.data.federation import Federation
from coterie.errors import UserError
from coterie.recipe import EngineSettings, Recipe
from coterie.server.participation import Crowd, Fixed, Participation
from coterie.server.population import Population, PopulationSettings, Presence
from coterie.server.rounds import Rounds
from coterie.settings import length

C = TypeVar("C", bound=Clients, covariant=True)


class Prepared(NamedTuple, Generic[C]):
    """A run before its first round."""

    announcement: Announcement
    clients: C
    rounds: Rounds


def prepare(recipe: Recipe, federation: Federation) -> Prepared[Simulated]:
    """Prepare a run. Everything that can be wrong with a recipe is found here, before any work is done."""
    if not len(federation.existing):
        raise UserError("every client is a new user; keep some clients for training")
    participation_of(recipe, federation)
    check_names(recipe.method, federation.ids)
    if recipe.stop.validates:
        check_validation(federation, f'stop.by = "{recipe.stop.by}"', recipe.stop.validates)
    device = _device(recipe.engine.device)
    if device.type == "mps" and recipe.engine.dtype == "float64":
        raise UserError('engine.device = "mps" has no float64; set engine.dtype = "float32" or engine.device = "cpu"')
    set_up(recipe.engine.threads, device, recipe.engine.deterministic)
    federation = federation.to(getattr(torch, recipe.engine.dtype), device)
    announcement = announced(recipe, federation)
    work = announcement.work(device)
    load = Workload(work, federation, recipe.aggregate)
    announcement, load = _calibrated(announcement, load)
    work, num_clients = load.work, len(federation.existing)
    planned(work.method, Round(1, num_clients, federation.num_examples, num_clients, work.seed))  # it may object
    clients = Simulated(load, *_engine(recipe.engine, load))
    population = Population(recipe.population, federation.ids, federation.is_new, recipe.run.seed)
    return Prepared(announcement, clients, rounds_of(recipe, work, clients, population))


def rounds_of(recipe: Recipe, work: Work, clients: Clients, population: Presence) -> Rounds:
    """Return the server's side of a run."""
    return Rounds(
        method=work.method,
        task=work.task,
        clients=clients,
        participation=participation_of(recipe, clients),
        population=population,
        seed=recipe.run.seed,
        num_rounds=recipe.run.rounds,
        eval_every=recipe.run.eval_every,
        adapt_steps=length(recipe.eval.adapt_steps),
        eval_clients=recipe.eval.clients,
        eval_last=recipe.run.eval_last,
        stop=recipe.stop,
    )


def participation_of(recipe: Recipe, clients: Crowd) -> Participation:
    """Return the process that draws cohorts. Raise UserError if it does not fit the clients or the method."""
    existing = int((~clients.is_new).sum())
    participation = recipe.run.cohorts(clients)
    participation.check(existing)
    everyone = participation == Fixed(existing) and recipe.population == PopulationSettings()
    if recipe.method.everyone and not everyone:
        name = registry.name_of("method", recipe.method)
        raise UserError(f"{name} needs every client in every round; omit run.clients_per_round and [population]")
    return participation


def check_names(method: Method, ids: Sequence[str]) -> None:
    """Check settings that are given by client name: every name must be a client, or "new" for all other clients."""
    for field in fields(method):  # type: ignore[arg-type]
        value = getattr(method, field.name)
        for name in value if isinstance(value, dict) else ():
            if name not in ids and name != "new":
                close = registry.nearest(name, ids)
                raise UserError(f"method.{field.name} names {name!r}{close}, which is not a client of this federation")


def check_validation(federation: Federation, setting: str, group: str) -> None:
    """Raise UserError unless there are validation examples of this group of clients, by which a setting chooses."""
    clients = federation.existing if group == "existing" else federation.new
    if not len(clients):
        raise UserError(f"{setting} needs new users; set partition.new_users to hold some out")
    if "validation" not in federation.splits or not federation.sizes("validation")[clients].any():
        raise UserError(
            f"{setting}: {group} users have no validation examples, and test examples must not be used to "
            "choose; use --set partition.validation=0.2, or a larger share if clients have few examples (in Python, "
            "give each client x_val and y_val)"
        )


def announced(recipe: Recipe, federation: Federation) -> Announcement:
    """Return what the server announces to every client of a federation."""
    labels = recipe.method.labels if recipe.model.labels == "auto" else recipe.model.labels
    outputs = len(federation.labels) if labels == "global" else int(federation.classes.lengths().max())
    tokens = None
    if not federation.x.is_floating_point():
        tokens = (int(federation.x.min()), int(federation.x.max()))
    return Announcement(
        method=recipe.method,
        model=recipe.model,
        labels=labels,
        classes=federation.labels,
        num_outputs=max(1, outputs),
        inputs=Inputs(tuple(federation.x.shape[1:]), tokens, federation.edges is not None),
        objective=federation.objective,
        seed=recipe.run.seed,
        dtype=recipe.engine.dtype,
    )


def _calibrated(announcement: Announcement, load: Workload) -> tuple[Announcement, Workload]:
    """Fill in hyper-parameters that theory computes from numbers that each client announces."""
    work, method = load.work, load.work.method
    if not isinstance(method, Calibrates) or method.is_calibrated:
        return announcement, load
    federation = load.federation
    measured = {}
    for i in federation.existing.tolist():
        with reporting(load, "measure", [i]), work.watching("measure"):
            measured[federation.ids[i]] = method.measure(work.task, load.data(i, "train", 0))
    method = method.calibrate(measured)
    work = Work(method, work.task, work.labels, work.seed)
    return replace(announcement, method=method), replace(load, work=work)


def _engine(settings: EngineSettings, load: Workload) -> tuple[Engine, str]:
    if settings.kind == "auto":
        return choose(load, settings.memory)
    cls = registry.load("engine", settings.kind)
    engine: Engine = cls(**{field.name: getattr(settings, field.name) for field in fields(cls)})
    if why_not := engine.unfit(load):
        raise UserError(f'engine.kind = "{settings.kind}" cannot do this: {why_not}; use "auto"')
    engine.open(load)
    return engine, "as configured"


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if (name == "cuda" and not torch.cuda.is_available()) or (name == "mps" and not torch.backends.mps.is_available()):
        raise UserError(
            f'engine.device = "{name}" is not available on this machine or in this PyTorch; use "cpu" or "auto"'
        )
    return torch.device(name)
