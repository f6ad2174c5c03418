"""Train: from a federation and a recipe to a run, with its folder, its checkpoints and its resumption."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from coterie import registry, streams
from coterie.clients.choose import choose
from coterie.clients.engine import Engine
from coterie.clients.machine import settle
from coterie.clients.setup import Setup
from coterie.core.method import Method, Round, Task
from coterie.core.tree import digest, like
from coterie.data.federation import Federation
from coterie.errors import UserError
from coterie.measure.record import Record
from coterie.models.init import draw
from coterie.models.model import Model
from coterie.models.module import Own
from coterie.recipe import NAMED, PLAIN, EngineSettings, Recipe, Tables, changed, make
from coterie.report.page import page
from coterie.run import Run
from coterie.server.participation import Fixed
from coterie.server.population import Population, PopulationSettings
from coterie.server.rounds import Simulation
from coterie.settings import length
from coterie.storage.checkpoint import load_checkpoint, save_checkpoint
from coterie.storage.folder import RunFolder

logger = logging.getLogger("coterie")

T = TypeVar("T")


def train(
    federation: Federation,
    *,
    model: str | Model | nn.Module = "mlp",
    method: str | Method = "pflego",
    head: str = "head",
    rounds: int = 200,
    clients_per_round: int | None = None,
    participation: str = "fixed",
    probability: float | None = None,
    clients_range: Sequence[int] | None = None,
    population: Mapping[str, Any] | None = None,
    seed: int = 0,
    eval_every: int = 10,
    eval_last: int = 1,
    checkpoint_every: int = 10,
    adapt_steps: int | str = 50,
    eval_clients: int | None = None,
    engine: str = "auto",
    dtype: str = "float32",
    device: str = "auto",
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    on_round: Callable[[Record], object] | None = None,
    out: str | Path | None = None,
    resume: bool = False,
) -> Run:
    """Train on a federation. The arguments are a recipe's keys; `head` names the head of an `nn.Module` of your own.

    `settings` has further keys of a recipe by section, like {"engine": {"workers": 2}, "model": {"head_init":
    "uniform"}}. They go with a model and a method of your own, too, and win over the other arguments. `on_round` is
    called after each round with its record, as in `Run.history`.
    With `out` the run folder is written there; with `resume` too, the run in that folder goes on.
    """
    tables = _tables(settings or {})
    if isinstance(model, nn.Module):
        model = Own(net=model, head_name=head)
    if not isinstance(model, str | Model):
        raise UserError(f"model must be a name, an nn.Module or a coterie model, not {model!r}")
    if not isinstance(method, str | Method):
        raise UserError(f"method must be a name or a method like PFLEGO(), not {method!r}")
    run = {
        "rounds": rounds,
        "clients_per_round": clients_per_round,
        "participation": participation,
        "probability": probability,
        "clients_range": None if clients_range is None else list(clients_range),
        "seed": seed,
        "eval_every": eval_every,
        "eval_last": eval_last,
        "checkpoint_every": checkpoint_every,
    }
    tree = {
        "model": {"name": model} if isinstance(model, str) else {},
        "method": {"name": method} if isinstance(method, str) else {},
        "run": run,
        "population": dict(population or {}),
        "eval": {"adapt_steps": adapt_steps, "clients": eval_clients},
        "engine": {"kind": engine, "dtype": dtype, "device": device},
    }
    own: dict[str, Any] = {}
    if isinstance(model, Model):
        own["model"] = _with(model, "model", tables.pop("model", {}))
    if isinstance(method, Method):
        own["method"] = _with(method, "method", tables.pop("method", {}))
    recipe = replace(Recipe.parse(changed(tree, tables)), **own)
    return Training(recipe, federation, None if out is None else Path(out), resume=resume).play(on_round)


class Training:
    """A run that is checked and ready to go, or to go on: making it finds what is wrong, before any work is done."""

    def __init__(
        self, recipe: Recipe, federation: Federation, out: Path | None = None, *, resume: bool = False
    ) -> None:
        self.recipe = recipe
        self.simulation = prepare(recipe, federation)
        self._folder = _open(out, recipe, resume)
        if self._folder:
            model = digest(self.simulation.setup.task.initial)
            self._facts = {"federation": federation.fingerprint(), "initial model": model}
            if resume:
                self._restore(self._folder)
                self._folder.lengthen(recipe.as_dict())

    def play(
        self,
        on_round: Callable[[Record], object] | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> Run:
        """To the end, or until `should_stop`, which is asked after each round; then KeyboardInterrupt is raised."""
        engine = self.simulation.engine
        name = registry.name_of("engine", engine)
        logger.info("engine %s: %s (%s)", name, engine.__doc__, self.simulation.reason)
        try:
            for record in self.simulation.play():
                last = record.round == self.simulation.rounds
                stop = not last and should_stop is not None and should_stop()
                self._write(record, checkpoint=stop or last)
                if on_round:
                    on_round(record)
                if stop:
                    raise KeyboardInterrupt
            run = Run(self.recipe, self.simulation)
            if self._folder:
                recipe, clients = self.recipe.as_dict(), run.clients()
                report = page(self._folder.path.name, recipe, run.summary, run.history, clients)
                self._folder.finish(run.summary, clients, report)
            return run
        finally:
            if self._folder:
                self._folder.close()
            engine.close()

    def _write(self, record: Record, checkpoint: bool) -> None:
        if self._folder is None:
            return
        self._folder.append(record)
        if checkpoint or record.round % self.recipe.run.checkpoint_every == 0:
            simulation = self.simulation
            trees = {"shared": simulation.shared, "memory": simulation.memory}
            self._folder.sync()
            save_checkpoint(self._folder.checkpoints, len(simulation.history), trees, simulation.store, self._facts)

    def _restore(self, folder: RunFolder) -> None:
        simulation = self.simulation
        index, trees = load_checkpoint(folder.checkpoints, simulation.store, self._facts)
        if index == 0 and folder.num_records() > self.recipe.run.checkpoint_every:
            raise UserError(f"{folder.checkpoints} is gone; start the run anew in another folder")
        simulation.history = folder.rewind(index)
        if trees:
            simulation.shared = like(simulation.shared, trees["shared"])
            simulation.memory = like(simulation.memory, trees["memory"])


def prepare(recipe: Recipe, federation: Federation) -> Simulation:
    """The run before its first round; everything that can be wrong with a recipe is found here."""
    if not len(federation.existing):
        raise UserError("every client is a new user; leave some for the training")
    participation = recipe.run.cohorts(len(federation.existing))
    participation.check(len(federation.existing))
    everyone = participation == Fixed(len(federation.existing)) and recipe.population == PopulationSettings()
    if recipe.method.everyone and not everyone:
        name = registry.name_of("method", recipe.method)
        raise UserError(f"{name} needs every client in every round; leave out run.clients_per_round and [population]")
    device = _device(recipe.engine.device)
    dtype: torch.dtype = getattr(torch, recipe.engine.dtype)
    federation = federation.to(dtype, device)
    labels = recipe.method.labels if recipe.model.labels == "auto" else recipe.model.labels
    outputs = max(1, len(federation.labels) if labels == "global" else int(federation.classes.lengths().max()))
    with streams.torch_seeded(streams.key(recipe.run.seed, "model")):
        net = draw(recipe.model, tuple(federation.x.shape[1:]), outputs)
    net = net.to(device, dtype)
    if all(value.ndim < 5 for value in (*net.parameters(), *net.buffers())):  # of images; it refuses volumes
        net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    task = Task(
        net,
        recipe.model.head,
        _example(federation.x),
        recipe.model.buffers,
        recipe.model.head_init,
        federation.objective,
        federation.edges is not None,
    )
    if task.num_outputs < outputs:
        raise UserError(f"the model has {task.num_outputs} outputs, the labels need {outputs}")
    setup = Setup(recipe.method, task, federation, labels, recipe.aggregate, recipe.run.seed)
    clients = (setup.data(i, "train", 0) for i in federation.existing.tolist())
    setup = replace(setup, method=recipe.method.tuned(task, clients))
    num_clients = len(federation.existing)
    setup.method.plan(Round(1, num_clients, federation.num_examples, num_clients, setup.seed))  # it may object
    return Simulation(
        *_engine(recipe.engine, setup),
        setup,
        participation,
        Population(recipe.population, federation, recipe.run.seed),
        recipe.run.rounds,
        recipe.run.eval_every,
        length(recipe.eval.adapt_steps),
        recipe.eval.clients,
        recipe.run.eval_last,
    )


def _tables(settings: Mapping[str, Mapping[str, Any]]) -> Tables:
    """Of sections that are not about data, which the federation has."""
    sections = [name for name in (*NAMED, *PLAIN) if name not in ("data", "partition")]
    for section, table in settings.items():
        if section not in sections or not isinstance(table, Mapping):
            raise UserError(
                f'settings has keys by section, like {{"engine": {{"workers": 2}}}}, not {section!r}: {table!r}; '
                f"the sections are: {', '.join(sections)}"
            )
    return {section: dict(table) for section, table in settings.items()}


def _with(part: T, section: str, keys: Mapping[str, Any]) -> T:
    """The same with these keys in the place of its own."""
    if not keys:
        return part
    before = {field.name: getattr(part, field.name) for field in fields(part)}  # type: ignore[arg-type]
    return make(type(part), section, {**before, **keys})


def _example(x: Tensor) -> Tensor:
    """One that shows what the model must take: of tokens, that with the largest."""
    return x[:1] if x.is_floating_point() else x[x.flatten(1).amax(1).argmax()][None]


def _engine(settings: EngineSettings, setup: Setup) -> tuple[Engine, str]:
    settle(settings.threads)
    if settings.kind == "auto":
        return choose(setup, settings.memory)
    cls = registry.load("engine", settings.kind)
    engine: Engine = cls(**{field.name: getattr(settings, field.name) for field in fields(cls)})
    if why_not := engine.unfit(setup):
        raise UserError(f'engine.kind = "{settings.kind}" cannot do this: {why_not}; use "auto"')
    engine.open(setup)
    return engine, "as asked"


def _open(out: Path | None, recipe: Recipe, resume: bool) -> RunFolder | None:
    if out is None:
        if resume:
            raise UserError("to resume, say where the run is: out=FOLDER")
        return None
    return RunFolder.reopen(out, recipe.as_dict()) if resume else RunFolder.create(out, recipe.as_dict())


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if (name == "cuda" and not torch.cuda.is_available()) or (name == "mps" and not torch.backends.mps.is_available()):
        raise UserError(
            f'engine.device = "{name}": this machine or this build of PyTorch has none; use "cpu" or "auto"'
        )
    return torch.device(name)
