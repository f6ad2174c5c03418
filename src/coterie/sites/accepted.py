"""A run as a site knows it: what the server announced, the work that follows from it, and what would be sent."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from coterie import registry
from coterie.aggregate.mean import Mean
from coterie.clients.announcement import Announcement
from coterie.clients.work import Work
from coterie.clients.workload import Workload
from coterie.core.tree import Tree
from coterie.data.federation import Federation
from coterie.errors import UserError
from coterie.sites.terms import LETTER, Form, Terms


@dataclass(frozen=True)
class Accepted:
    """A run that this site takes part in."""

    id: str
    load: Workload
    terms: Terms
    announcement: Mapping[str, Any]

    @property
    def work(self) -> Work:
        """The method and its task."""
        return self.load.work

    def received(self, shared: Tree) -> Tree:
        """Return a shared model as the work needs it. Raises UserError if it is not one of this run."""
        expected = set(forms_of(self.work.pattern))
        if other := sorted(expected ^ set(forms_of(shared))):
            raise UserError(f"the server sent another model than it announced; they differ in {other[0]}")
        return self.work.received(shared)


def read_run(head: Mapping[str, Any], own: Federation) -> Accepted:
    """Build the work of a run from what the server announced, with this site's own data."""
    announcement = Announcement.from_json(head["announcement"])
    own = own.to(getattr(torch, announcement.dtype), torch.device("cpu"))
    if announcement.labels == "global" and announcement.classes:
        own = own.relabelled(announcement.classes)
    if tuple(own.x.shape[1:]) != announcement.inputs.shape:
        raise UserError(
            f"the inputs of this site have shape {tuple(own.x.shape[1:])}, and those of the run "
            f"{announcement.inputs.shape}"
        )
    load = Workload(announcement.work(torch.device("cpu")), own, Mean())
    asked = {**head["announcement"], "method": head["asked"]}
    method = Announcement.from_json(asked).method
    _check_calibrated(head["asked"], head["announcement"]["method"])
    everything = json.dumps(asked, sort_keys=True).encode()
    terms = Terms(
        announcement=hashlib.sha256(everything).hexdigest(),
        method=registry.name_of("method", announcement.method),
        version=str(head["coterie"]),
        rounds=int(head["rounds"]),
        tensors=sent_tensors(load.work),
        numbers=tuple(sorted(load.work.probe.numbers(method, load.num_outputs(0)))),
        scores=bool(head["scores"]),
    )
    return Accepted(str(head["run"]), load, terms, head["announcement"])


def sent_tensors(work: Work) -> tuple[Form, ...]:
    """Return the tensors that a site may send in a round."""
    return *forms_of(work.pattern), *forms_of(work.letter, LETTER)


def forms_of(tree: Tree, prefix: str = "") -> list[Form]:
    """Return names, shapes and types of the tensors of a tree."""
    names = {name: str(value.dtype).removeprefix("torch.") for name, value in tree.items()}
    return [Form(f"{prefix}{name}", tuple(value.shape), names[name]) for name, value in tree.items()]


def _check_calibrated(asked: Mapping[str, Any], method: Mapping[str, Any]) -> None:
    """Raise UserError if a method differs from the one that the site was asked about in more than what it left open."""
    for key, value in asked.items():
        if isinstance(value, int | float) and method.get(key) != value:
            raise UserError(f"the server has changed method.{key} from {value} to {method.get(key)}")
    if asked["name"] != method["name"]:
        raise UserError(f"the server has changed the method from {asked['name']} to {method['name']}")
