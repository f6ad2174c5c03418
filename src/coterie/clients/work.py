"""What every process needs to do a client's work, besides the client's own data.

The functions below are all that is ever asked of a client. They are pure, they work on tensors only and never look at
their values, so they also run for many clients at once.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie import streams
from coterie.core.answers import letter_of, shared_of
from coterie.core.method import (
    AdaptsHead,
    Client,
    Data,
    Exchanges,
    Inputs,
    Labels,
    Method,
    Prepares,
    Receives,
    Reply,
    Round,
    Task,
    Tree,
)
from coterie.core.tree import is_tree, like, shift
from coterie.core.untouched import INITIAL, SHARED, untouched
from coterie.measure.probe import Probe
from coterie.storage.segments import CODES


@dataclass(frozen=True)
class Work:
    """A method and its task, as every process of a run has them."""

    method: Method
    task: Task
    labels: Labels
    """Label space: each client's own classes, or the union of all classes."""
    seed: int

    @cached_property
    def probe(self) -> Probe:
        """Measurements of the task."""
        return Probe(self.task)

    @contextmanager
    def on_thread(self) -> "Iterator[Work]":
        """Lend a thread the work with modules of its own. Passes put parameters into modules."""
        try:
            work = self._idle.pop()
        except IndexError:
            work = replace(self, task=self.task.with_own_modules())
        try:
            yield work
        finally:
            self._idle.append(work)

    @cached_property
    def _idle(self) -> "list[Work]":
        return []

    @property
    def like(self) -> Tensor:
        """A tensor of the type and on the device of the model."""
        return next(iter(self.task.initial.values()))

    @cached_property
    def shares_head(self) -> bool:
        """Whether all heads have the size of the model's own: clients share one, or send theirs in letters."""
        return set(self.task.head) <= self.pattern.keys() | self.letter.keys()

    def num_outputs(self, num_labels: int) -> int:
        """Return the width of a client's head: that of the model's own, or the size of its label space."""
        return self.task.num_outputs if self.shares_head else max(1, num_labels)

    def streams(self, names: Sequence[str], index: int) -> NDArray[np.int64]:
        """Return the key of each client's random stream in a round."""
        return streams.keys(self.seed, "batches", index, names)

    def received(self, shared: Tree) -> Tree:
        """Lay a broadcast out in memory like the initial shared model, so that products round as in a simulation."""
        return like(self.pattern, shared)

    @cached_property
    def pattern(self) -> Tree:
        """The shared model as the server sends it in the first round."""
        return shared_of(self.method, self.task)

    @cached_property
    def letter(self) -> Tree:
        """A letter as clients send it; it is empty if the method has none."""
        return letter_of(self.method, self.task)

    def create(self, name: str, num_outputs: int) -> Tree:
        """Return the personal state of a client before anything has happened."""
        seed = streams.key(self.seed, "personal", 0, name)
        with self.watching("init_personal"):
            return _state("init_personal", self.method.init_personal(self.task, Client(name, num_outputs, seed)))

    def prepare(self, name: str, personal: Tree, data: Data) -> Tree:
        """Return the personal state of a client that prepares for its first round, if the method has clients do so."""
        if not isinstance(self.method, Prepares):
            return personal
        with streams.torch_seeded(streams.key(self.seed, "personal", 0, name)), self.watching("prepare"):
            return _state("prepare", self.method.prepare(self.task, personal, data))

    def watching(self, function: str, shared: Tree | None = None) -> AbstractContextManager[None]:
        """Return the guard around a function of the method: it must not change anything in place."""
        trees = {SHARED: shared or {}, INITIAL: self.task.initial}
        return untouched(f"{type(self.method).__name__}.{function}", trees)


def local_update(work: Work, shared: Tree, personal: Tree, data: Data, rnd: Round) -> Reply:
    """Do a client's work in a round."""
    with work.watching("local_update", shared):
        reply = work.method.local_update(work.task, shared, personal, data, rnd)
    if not isinstance(reply, Reply):
        raise TypeError(f"local_update must return a Reply, not {type(reply).__name__}")
    for kind, tree in reply._asdict().items():
        for name, value in tree.items():
            if not isinstance(value, torch.Tensor) or value.layout != torch.strided or value.is_meta:
                what = f"{value.layout} on {value.device}" if isinstance(value, torch.Tensor) else type(value).__name__
                raise TypeError(f"Reply.{kind}[{name!r}] must be a dense tensor with values, not {what}")
    for name, value in reply.personal.items():
        if not isinstance(name, str) or not name or value.dtype not in CODES:
            raise TypeError(f"Reply.personal[{name!r}] with the type {value.dtype} cannot be stored")
    return reply


def told_update(work: Work, shared: Tree, personal: Tree, told: Tree, data: Data, rnd: Round) -> Reply:
    """Do a client's work in a round about which only this client is told something."""
    return local_update(work, shared, personal, data, rnd.told(told))


def receive(work: Work, shared: Tree, personal: Tree, rnd: Round) -> tuple[Tree]:
    """Return the personal state after the new broadcast has arrived."""
    if not isinstance(work.method, Receives):
        return (personal,)
    with work.watching("receive", shared):
        return (_state("receive", work.method.receive(work.task, shared, personal, rnd)),)


def read(work: Work, nothing: Tree, personal: Tree, letter: Tree, rnd: Round) -> tuple[Tree]:  # noqa: ARG001
    """Return the personal state after the client's letter has arrived. No broadcast comes with it."""
    if not isinstance(work.method, Exchanges):
        return (personal,)
    with work.watching("read"):
        return (_state("read", work.method.read(work.task, personal, letter, rnd)),)


def evaluate(work: Work, shared: Tree, personal: Tree, train: Data, *tested: Data, steps: int) -> tuple[Tree, ...]:
    """Evaluate the client's model as it is and after adaptation.

    Returns the counts as it is and after adaptation, first for the training examples, then for each split of `tested`.
    If adaptation changes nothing but the head, each split passes through the body once.
    """
    fixed = isinstance(work.method, AdaptsHead) and not work.task.local_buffers
    known = [_features(work, shared, personal, data) if fixed else None for data in (train, *tested)]
    (adapted,) = adapt(work, shared, personal, train, steps, known[0] if work.task.modes_agree else None)
    splits = zip((train, *tested), known, strict=True)
    counts = (score(work, shared, own, data, seen)[0] for data, seen in splits for own in (personal, adapted))
    return tuple(counts)


@torch.no_grad()
def _features(work: Work, shared: Tree, personal: Tree, data: Data) -> Tensor | None:
    """Return the features of the client's examples, or None if it has no examples."""
    if not len(data.y):  # not every model takes an empty batch
        return None
    return work.task.features(_params(work, shared, personal), data.x)


def _outputs(work: Work, shared: Tree, personal: Tree, x: Inputs, features: Tensor | None) -> Tensor:
    """Return the outputs of the client's model, from the features if they are known."""
    if features is None:
        with work.watching("predict", shared):
            return work.method.predict(work.task, shared, personal, x)
    return work.task.head_outputs(_params(work, shared, personal), features)


def _params(work: Work, shared: Tree, personal: Tree) -> Tree:
    with work.watching("personal_params", shared):
        return work.method.personal_params(work.task, shared, personal)


def adapt(
    work: Work, shared: Tree, personal: Tree, data: Data, steps: int, features: Tensor | None = None
) -> tuple[Tree]:
    """Return the personal state after adaptation, on the features if they are known."""
    method, task = work.method, work.task
    if features is not None and isinstance(method, AdaptsHead):
        with work.watching("adapt_head", shared):
            head = _state("adapt_head", method.adapt_head(task, shared, personal, features, data, steps))
        return ({**personal, **head},)
    with work.watching("adapt", shared):
        return (_state("adapt", method.adapt(task, shared, personal, data, steps)),)


def _state(function: str, personal: Tree) -> Tree:
    if not is_tree(personal):
        raise TypeError(f"{function} must return the personal state, a dict of tensors by name, not {personal!r:.200}")
    return personal


@torch.no_grad()
def score(work: Work, shared: Tree, personal: Tree, data: Data, features: Tensor | None = None) -> tuple[Tree]:
    """Count the right answers of the client's model, from the features if they are known."""
    if not len(data.y):
        return (dict.fromkeys(("examples", "right", "restricted", "loss"), data.stream.new_zeros(())),)
    outputs = _outputs(work, shared, personal, data.x, features)
    return (work.task.objective.scores(outputs, data.y, data.mask, data.classes),)


def score_updated(work: Work, shared: Tree, tensors: Tree, personal: Tree, data: Data) -> tuple[Tree]:
    """Count the right answers of the client's model right after its local update, before anything is sent."""
    held = shift(shared, tensors) if work.method.sends == "move" else shared
    return score(work, held, personal, data)
