"""What may leave a site, method by method: the tensors and numbers to which a site agrees in the terms of a run."""

import re
from typing import NamedTuple

import torch

from coterie import registry
from coterie.clients.announcement import Announcement, Inputs
from coterie.core.objective import Classification
from coterie.sites.accepted import sent_tensors
from coterie.sites.terms import LETTER

HEADINGS = ("method", "tensors", "tensors in letters", "numbers")
"""Headings of the table."""
_PART = re.compile(r"(.*\b(?:body|head)\.).+")


class Leaving(NamedTuple):
    """What a site may send in each round. Tensors are patterns, as in the key `send` of a policy."""

    method: str
    tensors: list[str]
    letters: list[str]
    numbers: list[str]

    def row(self) -> tuple[str, ...]:
        """Return the cells of the table."""
        return self.method, *(", ".join(each) or "none" for each in self[1:])


def of_method(name: str) -> Leaving:
    """Return what a site may send with a method and its default settings, for a network with one hidden layer."""
    method, model = registry.load("method", name)(), registry.load("model", "mlp")(hidden=[2])
    announced = Announcement(method, model, method.labels, (0, 1, 2), 3, Inputs((4,), None), Classification(), seed=0)
    work = announced.work(torch.device("cpu"))
    names = [form.name for form in sent_tensors(work)]
    letters = [name for name in names if name.startswith(LETTER)]
    numbers = work.probe.numbers(method, work.num_outputs(3))
    return Leaving(
        name, _patterns([name for name in names if name not in letters]), _patterns(letters), sorted(numbers)
    )


def _patterns(names: list[str]) -> list[str]:
    return list(dict.fromkeys(_PART.sub(r"\1*", name) for name in names))
