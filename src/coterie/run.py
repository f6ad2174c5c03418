"""A run: its figures, and the models of all clients. It can be loaded from its folder without the data."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from coterie import registry, streams
from coterie.clients.announcement import Announcement
from coterie.clients.clients import Clients
from coterie.clients.simulated import Simulated
from coterie.clients.work import Work, model_of
from coterie.core.method import Data, Method, Prepares, Tree
from coterie.core.tree import moved
from coterie.data.federation import Federation
from coterie.data.ragged import Ragged
from coterie.errors import UserError
from coterie.measure.record import Record
from coterie.measure.summary import Summary
from coterie.models.model import Model
from coterie.outcome import client_rows, summarize, work_of
from coterie.report.words import people, things
from coterie.server.rounds import Rounds
from coterie.settings import length, user_path
from coterie.sites.model import is_state, read_model
from coterie.storage.artifact import Members, read_artifact
from coterie.storage.checkpoint import load_checkpoint
from coterie.storage.folder import SERVER, check_not_lost, read_history, read_rows, read_summary
from coterie.storage.origin import read_origin
from coterie.storage.store import PersonalStore

logger = logging.getLogger("coterie")


class Run:
    """The figures of a run, and the models of all clients.

    `coterie.train` returns one, and `coterie.load` reads one from a run folder.
    """

    def __init__(
        self,
        announcement: Announcement,
        work: Work,
        members: Members,
        shared: Tree,
        personal: Callable[[int], Tree],
        history: Sequence[Record],
        summary: Summary | None,
        rows: list[dict[str, Any]],
        adapt_steps: int,
        federation: Federation | None = None,
    ) -> None:
        self.ids = members.ids
        """Names of all clients."""
        self.history = list(history)
        """The record of each round, as in rounds.jsonl."""
        self._summary = summary
        self._announcement, self._work, self._members = announcement, work, members
        self._shared, self._personal = shared, personal
        self._rows, self._adapt_steps, self._federation = rows, adapt_steps, federation

    @classmethod
    def trained(cls, announcement: Announcement, clients: Clients, rounds: Rounds) -> "Run":
        """Return the run of a training that has just ended."""
        evaluation = rounds.latest or rounds.evaluate()
        return cls(
            announcement,
            work_of(announcement, rounds),
            Members(tuple(clients.ids), clients.classes, clients.is_new),
            rounds.shared,
            clients.personal,
            rounds.history,
            summarize(announcement, clients, rounds, evaluation),
            client_rows(announcement, clients, rounds.history, evaluation),
            rounds.adapt_steps,
            clients.load.federation if isinstance(clients, Simulated) else None,
        )

    def __repr__(self) -> str:
        new = int(self._members.is_new.sum())
        size = f"{things(len(self.history), 'round')}, {people(len(self.ids) - new, new)}"
        if self._summary is None:
            return f"<Run of {registry.name_of('method', self._work.method)}: {size}, not finished>"
        summary = self._summary
        figures = {
            "as is": summary.existing.as_is.mean,
            "adapted": summary.existing.adapted.mean,
            "for new users after adaptation": summary.new.after.mean,
        }
        told = ", ".join(f"{mean:.2%} {what}" for what, mean in figures.items() if mean is not None)
        remarks = "".join(f"; {remark}" for remark in summary.remarks())
        return f"<Run of {summary.method}: {size}, {summary.score} {told or 'not measured'}{remarks}>"

    @property
    def summary(self) -> Summary:
        """The figures of the run, as in summary.json. A run that has not finished has none."""
        if self._summary is None:
            raise UserError("this run has not finished, so it has no summary; resume it, or use its history and models")
        return self._summary

    @property
    def federation(self) -> Federation:
        """The clients and their data. A run that was loaded from its folder has none."""
        if self._federation is None:
            raise UserError("a run that is loaded from its folder has no data; read the data again with its recipe")
        return self._federation

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input of the models."""
        return self._announcement.inputs.shape

    @property
    def takes_tokens(self) -> bool:
        """Whether inputs are tokens, and not quantities."""
        return self._announcement.inputs.tokens is not None

    @property
    def shared(self) -> Tree:
        """A copy of the shared model."""
        return {name: value.clone() for name, value in self._shared.items()}

    def personal(self, client: str) -> Tree:
        """Return a copy of a client's personal state."""
        return {name: value.clone() for name, value in self._personal(self._index(client)).items()}

    def classes(self, client: str) -> tuple[Any, ...]:
        """Return the labels of a client, with their original types."""
        own = self._members.classes.row(self._index(client))
        return tuple(self._announcement.classes[label] for label in own) if self._announcement.classes else ()

    def model(self, client: str | None = None) -> nn.Module:
        """Return a client's model. Its attribute `classes` names the outputs; unused outputs are None.

        The name can be omitted if there is only one client, as in the state of a site.
        """
        if client is None:
            if len(self.ids) > 1:
                raise UserError(f"name the client: this run has {len(self.ids)}, such as {self.ids[0]!r}")
            client = self.ids[0]
        local = self._work.labels == "local"
        return self._module(self.personal(client), self.classes(client) if local else self._announcement.classes)

    def personalize(self, x: ArrayLike, y: ArrayLike, steps: int | str | None = None) -> nn.Module:
        """Return a model for a client that was never seen before, adapted on its examples.

        Args:
            x: inputs of the new client.
            y: labels of the new client.
            steps: number of local steps, or "2 epochs"; by default the run's `eval.adapt_steps`.

        Returns:
            The model. Its attribute `classes` names the outputs.
        """
        work = self._work
        data, classes = self._new_client(x, y)
        number = self._adapt_steps if steps is None else length(steps)
        (created,) = moved([work.create("new", work.num_outputs(len(classes)))], data.y.device)
        personal = work.prepare("new", created, data)
        with streams.torch_seeded(int(data.stream)):
            return self._module(work.method.adapt(work.task, self.shared, personal, data, number), classes)

    def clients(self) -> list[dict[str, Any]]:
        """Return a row for each evaluated client, as in clients.csv."""
        return [dict(row) for row in self._rows]

    def _new_client(self, x: ArrayLike, y: ArrayLike) -> tuple[Data, Sequence[Any]]:
        """Check the examples of a new client. Returns (data, names of its outputs)."""
        inputs, known = self._announcement.inputs, self._announcement.classes
        if inputs.is_graph:
            raise UserError(
                "a new client of a graph also needs its edges; hold it out of training with partition.new_users instead"
            )
        given = {"new": (x, y, np.asarray(x)[:0], np.asarray(y)[:0])}
        like = next(iter(self._work.task.initial.values()))
        arrays = Federation.from_arrays(given, regression=not known, tokens=inputs.tokens is not None)
        arrays = arrays.to(like.dtype, like.device)
        if tuple(arrays.x.shape[1:]) != inputs.shape:
            raise UserError(f"x has rows of shape {tuple(arrays.x.shape[1:])}, but the run has {inputs.shape}")
        if self._work.labels == "global" and known:
            arrays = arrays.relabelled(known)
        width = self._work.num_outputs(len(arrays.labels))
        if len(arrays.labels) > width:
            raise UserError(f"{len(arrays.labels)} classes do not fit the shared head of {width} outputs")
        (stream,) = self._work.streams(["new"], 0)
        data = arrays.data(0, "train", self._work.labels, stream, width)
        if inputs.tokens is not None:
            self._check_tokens(data.x, inputs.tokens)
        return data, arrays.labels

    def _check_tokens(self, x: Tensor, known: tuple[int, int]) -> None:
        task = self._work.task
        try:
            with torch.no_grad():
                task.module(task.initial).cpu()(x.cpu())  # on a GPU an unknown token would end the process
        except IndexError:
            raise UserError(
                f"x has tokens from {x.min()} to {x.max()}, and the model does not know all of them; those of the "
                f"federation are from {known[0]} to {known[1]}"
            ) from None

    def _module(self, personal: Tree, classes: Sequence[Any]) -> nn.Module:
        return model_of(self._work, self.shared, personal, classes)

    def _index(self, client: str) -> int:
        client = str(client)
        if client not in self.ids:
            raise UserError(f"no client {client!r}{registry.nearest(client, self.ids)} in this run of {len(self.ids)}")
        return self.ids.index(client)


def load(folder: str | Path, model: nn.Module | Model | None = None, method: Method | None = None) -> Run:
    """Load a run from its folder, without the data it was trained on.

    The folder of state of a real site is loaded as a run with this one client, once the site has got its model.

    A run that was stopped or killed gives the state of its last checkpoint. With a method that prepares its clients
    (FLIX, Scafflix, i-Scaffnew), a client that was neither visited nor evaluated has no state, because it would need
    its data to prepare.

    Args:
        folder: the run folder.
        model: your `nn.Module` or its settings, if the run was trained on one of your own. Its weights do not matter.
        method: your method, if the run was trained with one that is not registered.
    """
    if not isinstance(model, nn.Module | Model | None):
        raise UserError(f"model must be your nn.Module, not {model!r}; omit it if the run used a model of Coterie")
    path = user_path(folder)
    try:
        return _load_site(path, model, method) if is_state(path) else _load(path, model, method)
    except OSError as error:
        raise UserError(f"cannot read {error.filename or path}: {error.strerror or error}") from None


def _load_site(path: Path, model: nn.Module | Model | None, method: Method | None) -> Run:
    kept = read_model(path)
    announcement = Announcement.from_json(kept.announcement, model, method)
    work = announcement.work(torch.device("cpu"))
    if work.labels == "local":  # a site that took no part may have classes that no other has
        announcement = replace(announcement, classes=kept.labels)
    own = np.array([announcement.classes.index(label) for label in kept.labels], dtype=np.int64)
    members = Members((kept.name,), Ragged.of([own]), np.array([False]))
    shared, steps = work.received(kept.shared), length(kept.adapt_steps)
    return Run(announcement, work, members, shared, lambda _: kept.personal, [], None, [], steps)


def _load(path: Path, model: nn.Module | Model | None, method: Method | None) -> Run:
    origin, artifact = read_origin(path), read_artifact(path)
    announcement = Announcement.from_json(artifact.announcement, model, method)
    work = announcement.work(torch.device("cpu"), artifact.initial)
    members = artifact.members

    def create(i: int) -> Tree:
        own = len(announcement.classes) if work.labels == "global" else len(members.classes.row(i))
        return work.create(members.ids[i], work.num_outputs(own))

    store = PersonalStore(create, len(members.ids), torch.device("cpu"))
    index, trees = load_checkpoint(path / "checkpoint", store, origin.run)
    if not trees:
        check_not_lost(path, origin.recipe["run"]["checkpoint_every"])
        raise UserError(
            f"{path} has no checkpoint: the run was stopped before its first one (run.checkpoint_every), or the folder "
            "checkpoint/ is missing. Resume the run, which then begins at round 1, or copy the whole folder"
        )

    at_sites = (path / SERVER).is_dir()

    def personal(i: int) -> Tree:
        if at_sites and store.is_unvisited(i) and create(i):
            raise UserError(
                f"the personal state of {members.ids[i]!r} is at that site and not in this run: load the site's own "
                "folder of state there"
            )
        if isinstance(work.method, Prepares) and store.is_unvisited(i):
            raise UserError(
                f"client {members.ids[i]!r} was neither visited nor evaluated in this run, and it needs its data to "
                "prepare its personal state"
            )
        return store[i]

    summary = read_summary(path)
    if summary and summary.rounds != index:
        logger.warning(
            f"{path}: the checkpoint of round {summary.rounds} is missing or damaged, so the models are those of round "
            f"{index}, while the summary is that of round {summary.rounds}"
        )
    return Run(
        announcement,
        work,
        members,
        work.received(trees["shared"]),
        personal,
        read_history(path, index),
        summary,
        read_rows(path) if summary else [],
        length(origin.recipe["eval"]["adapt_steps"]),
    )
