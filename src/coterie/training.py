"""Training: from a federation and a recipe to a run, with its folder, its checkpoints and its resumption."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypedDict, TypeVar, Unpack

from torch import nn

from coterie import registry
from coterie.clients.clients import Clients
from coterie.core.method import Method
from coterie.core.tree import Tree, digest, like
from coterie.data.federation import Federation
from coterie.errors import DiskError, UserError
from coterie.measure.record import Record
from coterie.models.model import Model
from coterie.models.module import Own
from coterie.prepare import Prepared, prepare
from coterie.recipe import NAMED, PLAIN, Recipe, Tables, changed, make
from coterie.report.page import page
from coterie.run import Run
from coterie.settings import user_path
from coterie.storage.artifact import Artifact, Members, read_artifact, write_artifact
from coterie.storage.checkpoint import tidy
from coterie.storage.folder import RunFolder, check_not_lost
from coterie.storage.origin import Origin
from coterie.track.bars import on_stderr

logger = logging.getLogger("coterie")

T = TypeVar("T")


class Keys(TypedDict, total=False):
    """Keys of a recipe that `train` takes as arguments. A key that is not given has the recipe's default."""

    rounds: int
    clients_per_round: int | None
    participation: str
    probability: float | None
    clients_range: Sequence[int] | None
    seed: int
    eval_every: int
    eval_last: int
    checkpoint_every: int
    adapt_steps: int | str
    eval_clients: int | None
    engine: str
    dtype: str
    device: str


_PLACES = {
    "adapt_steps": ("eval", "adapt_steps"),
    "eval_clients": ("eval", "clients"),
    "engine": ("engine", "kind"),
    "dtype": ("engine", "dtype"),
    "device": ("engine", "device"),
}
"""Section and key of the arguments in a recipe. The others belong to [run], under their own names."""


def train(
    federation: Federation,
    *,
    model: str | Model | nn.Module = "mlp",
    method: str | Method = "pflego",
    head: str = "head",
    population: Mapping[str, Any] | None = None,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    on_round: Callable[[Record], object] | None = None,
    progress: bool | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    **keys: Unpack[Keys],
) -> Run:
    """Train on a federation.

    Args:
        federation: the clients and their data.
        model: name of a model (`coterie models`), its settings, or an `nn.Module` of your own.
        method: name of a method (`coterie methods`), or a method such as `PFLEGO(tau=50)`.
        head: name of the submodule of your own `nn.Module` that is its head; "" makes the whole model the body.
        population: keys of the section [population]: which clients are present, and which respond.
        settings: further keys of a recipe by section, such as {"engine": {"workers": 2}}. They also apply to a model
            and a method of your own, and override the other arguments.
        on_round: function that is called after each round with its record, as in `Run.history`.
        progress: whether to show a progress bar and a line for each evaluation on stderr. By default, they are shown
            if stderr is a terminal.
        out: folder to write the run to.
        resume: continue the run in the folder `out`.
        keys: keys of a recipe: rounds, clients_per_round, participation, probability, clients_range, seed, eval_every,
            eval_last, checkpoint_every, adapt_steps, eval_clients, engine, dtype, device.

    Returns:
        The run, with its figures and the models of all clients.
    """
    if not isinstance(federation, Federation):
        raise UserError(
            f"train() needs a federation, not {type(federation).__name__}; "
            "build one with Federation.from_arrays, from_table, from_folder or from_datasets"
        )
    tables = _tables(settings or {})
    if isinstance(model, nn.Module):
        model = Own(net=model, head_name=head)
    if not isinstance(model, str | Model):
        raise UserError(f"model must be a name, an nn.Module or a coterie model, not {model!r}")
    if not isinstance(method, str | Method):
        raise UserError(f"method must be a name or a method such as PFLEGO(), not {method!r}")
    if isinstance(method, Method) and not is_dataclass(method):
        raise UserError(f"{type(method).__name__} is not a dataclass; decorate it with @settings (coterie.core.method)")
    tree: dict[str, dict[str, Any]] = {
        "model": {"name": model} if isinstance(model, str) else {},
        "method": {"name": method} if isinstance(method, str) else {},
        "population": dict(population or {}),
    }
    for argument, value in keys.items():
        if argument not in Keys.__annotations__:
            known = [*Keys.__annotations__, *(train.__kwdefaults__ or {})]
            raise TypeError(f"train() has no argument {argument!r}{registry.nearest(argument, known)}")
        section, key = _PLACES.get(argument, ("run", argument))
        if value is not None:
            tree.setdefault(section, {})[key] = list(value) if isinstance(value, tuple) else value
    own: dict[str, Any] = {}
    if isinstance(model, Model):
        own["model"] = _with(model, "model", tables.pop("model", {}))
    if isinstance(method, Method):
        own["method"] = _with(method, "method", tables.pop("method", {}))
    recipe = replace(Recipe.parse(changed(tree, tables)), **own)
    training = Training(recipe, federation, None if out is None else user_path(out), resume=resume)
    with on_stderr(training.clients, training.rounds, progress) as shown:

        def after(record: Record) -> None:
            shown.advance(record)
            if on_round:
                on_round(record)

        return training.play(after)


class Training:
    """A run that is ready to start or to continue. Creating it finds what is wrong, before any work is done."""

    def __init__(
        self, recipe: Recipe, source: Federation | Prepared[Clients], out: Path | None = None, *, resume: bool = False
    ) -> None:
        self.recipe = recipe
        prepared = prepare(recipe, source) if isinstance(source, Federation) else source
        self.announcement, self.clients, self.rounds = prepared
        if resume and out is None:
            raise UserError("to resume, name the folder of the run: out=FOLDER")
        self._folder: RunFolder | None = None
        if out is not None:
            facts = {"federation": self.clients.fingerprint(), "initial model": digest(self.rounds.task.initial)}
            origin = Origin(recipe.as_dict(), facts)
            self._folder = RunFolder.reopen(out, origin) if resume else RunFolder.create(out, origin)
            try:
                self._begin(self._folder, origin, resume)
            except BaseException:
                self._folder.close()  # so that the same process may try again
                raise

    def play(
        self,
        on_round: Callable[[Record], object] | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> Run:
        """Play to the end, or until `should_stop`, which is asked after each round; then raise KeyboardInterrupt."""
        logger.info("engine %s: %s", self.clients.engine_name, self.clients.reason)
        try:
            for record in self.rounds.play():
                last = self.rounds.is_over
                stop = not last and should_stop is not None and should_stop()
                self._write(record, checkpoint=stop or last)
                if on_round:
                    on_round(record)
                if stop:
                    raise KeyboardInterrupt
            run = Run.trained(self.announcement, self.clients, self.rounds)
            self.clients.end(self.rounds.shared, len(self.rounds.history))
            if self._folder:
                self._finish(self._folder, run)
            return run
        finally:
            if self._folder:
                self._folder.close()
            self.clients.close()

    def _begin(self, folder: RunFolder, origin: Origin, resume: bool) -> None:
        with folder.writing():
            if resume:
                self._restore(folder)
                folder.lengthen(origin)
            else:
                write_artifact(folder.path, self._artifact(), origin.run)
            folder.note_command()

    def _write(self, record: Record, checkpoint: bool) -> None:
        if self._folder is None:
            return
        with self._folder.writing():
            self._folder.append(record)
            if checkpoint or record.round % self.recipe.run.checkpoint_every == 0:
                self._checkpoint(self._folder)

    def _finish(self, folder: RunFolder, run: Run) -> None:
        """Write the results: what is small and important first, then the page."""
        rows = run.clients()
        try:
            with folder.writing():
                if not self.rounds.history:
                    self._checkpoint(folder)
                folder.finish(run.summary, rows)
                folder.write_page(page(folder.path.name, self.recipe.as_dict(), run.summary, run.history, rows))
        except DiskError as error:
            error.run = run
            raise

    def _checkpoint(self, folder: RunFolder) -> None:
        trees = {"shared": self.rounds.shared, "memory": self.rounds.memory}
        folder.sync()
        self.clients.save(folder.checkpoints, len(self.rounds.history), trees, folder.run)

    def _restore(self, folder: RunFolder) -> None:
        started = folder.num_records() > 0
        if started:
            read_artifact(folder.path)
        index, trees = self.clients.restore(folder.checkpoints, folder.run)
        if index == 0:
            check_not_lost(folder.path, self.recipe.run.checkpoint_every)
        self.rounds.history = folder.rewind(index)
        if trees:
            self.rounds.shared = like(self.rounds.shared, trees["shared"])
            stored = trees["memory"]
            added = {name: stored[name] for name in sorted(stored.keys() - self.rounds.memory.keys())}
            self.rounds.memory = like({**self.rounds.memory, **added}, stored)  # a method may add names in any round
        tidy(folder.checkpoints, index, folder.run)
        if not started:  # the run may have been killed before it wrote these files
            write_artifact(folder.path, self._artifact(), folder.run)

    def _artifact(self) -> Artifact:
        members = Members(tuple(self.clients.ids), self.clients.classes, self.clients.is_new)
        return Artifact(self.announcement.to_json(), self._network(), members)

    def _network(self) -> Tree:
        net = self.announcement.network()
        return {name: value.detach() for name, value in net.state_dict().items()}


def _tables(settings: Mapping[str, Mapping[str, Any]]) -> Tables:
    """Check that all sections are known. Sections about data are not, because the federation has the data."""
    sections = [name for name in (*NAMED, *PLAIN) if name not in ("data", "partition")]
    for section, table in settings.items():
        if section not in sections or not isinstance(table, Mapping):
            raise UserError(
                f'settings must have keys by section, like {{"engine": {{"workers": 2}}}}, not {section!r}: {table!r}; '
                f"available sections: {', '.join(sections)}"
            )
    return {section: dict(table) for section, table in settings.items()}


def _with(part: T, section: str, keys: Mapping[str, Any]) -> T:
    """Return the part with some keys replaced."""
    if not keys:
        return part
    before = {field.name: getattr(part, field.name) for field in fields(part)}  # type: ignore[arg-type]
    return make(type(part), section, {**before, **keys})
