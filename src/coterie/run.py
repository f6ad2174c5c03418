"""What a training leaves in your hands: its figures, and everyone's model."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from coterie import registry, streams
from coterie.core.method import Client, Tree
from coterie.data.federation import Federation
from coterie.errors import UserError
from coterie.measure.evaluate import Scores
from coterie.measure.summary import Summary, protocol, totals, which, with_last10
from coterie.recipe import Recipe
from coterie.report.words import people, things
from coterie.server.rounds import Simulation
from coterie.settings import length


class Run:
    """A finished training: figures, and everyone's model."""

    def __init__(self, recipe: Recipe, simulation: Simulation) -> None:
        self.recipe = recipe
        self.history = simulation.history
        """A record for each round, as in rounds.jsonl."""
        self._simulation = simulation
        self._setup = simulation.setup
        self._evaluation = simulation.latest or simulation.evaluate()
        self.summary = self._summary()

    def __repr__(self) -> str:
        summary, federation = self.summary, self.federation
        figures = {
            "as is": summary.existing.as_is.mean,
            "adapted": summary.existing.adapted.mean,
            "of new users after adaptation": summary.new.after.mean,
        }
        told = ", ".join(f"{mean:.2%} {what}" for what, mean in figures.items() if mean is not None)
        size = f"{things(summary.rounds, 'round')}, {people(len(federation.existing), len(federation.new))}"
        return f"<Run of {summary.method}: {size}, {summary.score} {told or 'not measured'}>"

    @property
    def federation(self) -> Federation:
        return self._setup.federation

    @property
    def shared(self) -> Tree:
        """What the server holds."""
        return {name: value.clone() for name, value in self._simulation.shared.items()}

    def personal(self, client: str) -> Tree:
        """What a client holds."""
        return {name: value.clone() for name, value in self._simulation.store[self._index(client)].items()}

    def model(self, client: str) -> nn.Module:
        """A client's model; its attribute `classes` names the outputs, None those that this client does not use."""
        i = self._index(client)
        own = self.federation.classes.row(i) if self._setup.labels == "local" else range(len(self.federation.labels))
        return self._module(self.personal(client), [self.federation.labels[label] for label in own])

    def personalize(self, x: ArrayLike, y: ArrayLike, steps: int | str | None = None) -> nn.Module:
        """A model for a client never seen before, adapted on its examples; `classes` names the outputs."""
        given = {"new": (x, y, np.asarray(x)[:0], np.asarray(y)[:0])}
        setup, like = self._setup, next(iter(self._setup.task.initial.values()))
        if setup.task.is_graph:
            raise UserError(
                "a new client of a graph brings its edges, too; hold it out with partition.new_users instead"
            )
        tokens = not self.federation.x.is_floating_point()
        arrays = Federation.from_arrays(given, regression=not self.federation.labels, tokens=tokens)
        arrays = arrays.to(like.dtype, like.device)
        if arrays.x.shape[1:] != self.federation.x.shape[1:]:
            raise UserError(
                f"x has rows of shape {tuple(arrays.x.shape[1:])}, the run's {tuple(self.federation.x.shape[1:])}"
            )
        stream = streams.key(setup.seed, "batches", 0, "new")
        data, classes = arrays.data(0, "train", "local", stream), arrays.labels
        if setup.labels == "global":
            if unknown := set(classes) - set(self.federation.labels):
                raise UserError(
                    f"labels {sorted(unknown)} are not among the federation's {list(self.federation.labels)}"
                )
            places = torch.tensor([self.federation.labels.index(label) for label in classes], device=data.y.device)
            data, classes = data._replace(y=places[data.y]), self.federation.labels
        width = setup.task.num_outputs if setup.shares_head else max(1, len(classes))
        if len(classes) > width:
            raise UserError(f"{len(classes)} classes do not fit the shared head of {width} outputs")
        if tokens:
            self._check_tokens(data.x)
        client = Client("new", width, streams.key(setup.seed, "personal", 0, "new"))
        personal = setup.method.init_personal(setup.task, client)
        steps = self._simulation.adapt_steps if steps is None else length(steps)
        with streams.torch_seeded(stream):
            personal = setup.method.settle(setup.task, personal, data)
            return self._module(setup.method.adapt(setup.task, self.shared, personal, data, steps), classes)

    def clients(self) -> list[dict[str, Any]]:
        """A row for each client, as in clients.csv."""
        visits = Counter(client for record in self.history for client in record.cohort)
        evaluation, federation = self._evaluation.test, self.federation
        rows = [
            *_rows("existing", evaluation.as_is, evaluation.adapted),
            *_rows("new", evaluation.before, evaluation.after),
        ]
        return [
            {
                "client": federation.ids[i],
                "role": role,
                "classes": " ".join(str(federation.labels[label]) for label in federation.classes.row(i)),
                "train_examples": int(federation.sizes("train")[i]),
                "test_examples": int(federation.sizes("test")[i]),
                "visits": visits[federation.ids[i]],
                **figures,
            }
            for i, role, figures in rows
        ]

    def _summary(self) -> Summary:
        simulation, setup = self._simulation, self._setup
        final = self.history[-1].eval if self.history else None
        final = final or simulation.measured(self._evaluation, Scores.of({}))
        figures = with_last10(final, self.history)
        present = simulation.population.present(max(1, len(self.history)))
        existing = which(len(self._evaluation.test.as_is.clients), len(present))
        new = which(len(self._evaluation.test.before.clients), len(self.federation.new))
        return Summary(
            method=registry.name_of("method", setup.method),
            engine=registry.name_of("engine", simulation.engine),
            seed=setup.seed,
            rounds=len(self.history),
            score=setup.task.objective.score,
            protocol=protocol(
                setup.task.objective.score,
                setup.labels,
                simulation.adapt_steps,
                len(self.history),
                existing,
                new,
                settles=setup.settles,
            ),
            existing=figures.existing,
            new=figures.new,
            validation=final.validation,
            emphasis=setup.method.emphasis(),
            train_loss=final.train_loss,
            cost=totals(self.history),
        )

    def _module(self, personal: Tree, classes: Sequence[Any]) -> nn.Module:
        module = self._setup.task.module(self._setup.method.personal_params(self._setup.task, self.shared, personal))
        unused = self._setup.task.num_outputs - len(classes) if self._setup.shares_head else 0
        module.classes = (*classes, *[None] * unused)  # type: ignore[assignment]
        return module

    def _check_tokens(self, x: Tensor) -> None:
        task = self._setup.task
        try:
            with torch.no_grad():
                task.outputs(task.initial, x)
        except IndexError:
            known = self.federation.x
            raise UserError(
                f"x has tokens from {x.min()} to {x.max()}, and the model does not know all of them; those of the "
                f"federation are from {known.min()} to {known.max()}"
            ) from None

    def _index(self, client: str) -> int:
        ids, client = self.federation.ids, str(client)
        if client not in ids:
            raise UserError(f"no client {client!r}{registry.nearest(client, ids)} in this federation of {len(ids)}")
        return ids.index(client)


def _rows(role: str, plain: Scores, adapted: Scores) -> list[tuple[int, str, dict[str, float]]]:
    columns = zip(plain.clients, plain.accuracy, plain.restricted, adapted.accuracy, adapted.restricted, strict=True)
    names = ("accuracy", "restricted", "adapted", "adapted_restricted")
    return [(i, role, dict(zip(names, map(float, figures), strict=True))) for i, *figures in columns]
