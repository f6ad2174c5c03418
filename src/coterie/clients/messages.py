"""What a reply must look like to be aggregated. Nothing is broadcast, converted or completed.

Replies are checked where they are received, before anything is computed with them. A client whose reply does not fit
counts as if it had not answered, and the record of the round says why.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

import torch

from coterie.clients.clients import NOT_FINITE
from coterie.core.tree import Tree
from coterie.core.untouched import SHARED, complaint
from coterie.errors import ClientError

Names = tuple[frozenset[str], frozenset[str]]
"""Names of the tensors and of the numbers in a reply."""


def misfit(tensors: Tree, numbers: Tree, shared: Tree) -> str | None:
    """Return why replies, stacked along a leading axis, do not fit the shared model, or None if they do."""
    if why := _unlike_pattern("tensor", tensors, shared, "the shared model"):
        return why
    for name, value in numbers.items():
        if not isinstance(name, str):
            return f"the number {name!r} has a name that is not text"
        if value.ndim != 1:
            return f"the number {name!r} has shape {tuple(value.shape[1:])}, but must be a single number"
        if value.is_complex():
            return f"the number {name!r} is complex"
        if value.dtype == torch.bool:
            return f"the number {name!r} is True or False, but must be a number"
        if value.is_floating_point() and value.dtype.itemsize == 1:
            return f"the number {name!r} has type {value.dtype}, which cannot be added up"
    return None


def misfit_letter(letters: Tree, form: Tree) -> str | None:
    """Return why letters, stacked along a leading axis, do not have the form that the method declares, or None."""
    if missing := sorted(form.keys() - letters.keys()):
        return f"{missing[0]!r} is missing in the letter"
    return _unlike_pattern("letter's tensor", letters, form, "the method's letters")


def _unlike_pattern(what: str, tensors: Tree, pattern: Tree, whole: str) -> str | None:
    for name, value in sorted(tensors.items()):  # a message from a network has its names in any order
        if (own := pattern.get(name)) is None:
            return f"the {what} {name!r} is not part of {whole}"
        if value.shape[1:] != own.shape:
            return f"the {what} {name!r} has shape {tuple(value.shape[1:])} instead of {tuple(own.shape)}"
        if value.dtype != own.dtype:
            return f"the {what} {name!r} has type {value.dtype} instead of {own.dtype}"
    return None


def majority(clients: Mapping[Names, Collection[int]]) -> tuple[Names | None, dict[int, str]]:
    """Return the names in the replies of most clients, and why the replies of all others are refused.

    Args:
        clients: clients by the names of the tensors and of the numbers in their replies. If two groups are equally
            large, those who sent more names are right.
    """
    if not clients:
        return None, {}
    best = max(clients, key=lambda names: (len(clients[names]), *map(len, names), *map(sorted, names)))
    return best, {client: _unlike(names, best) for names in clients if names != best for client in clients[names]}


def _unlike(names: Names, others: Names) -> str:
    for mine, theirs in zip(names, others, strict=True):
        if missing := sorted(theirs - mine):
            return f"{missing[0]!r} is missing, which other clients sent"
        if more := sorted(mine - theirs):
            return f"{more[0]!r} was not sent by other clients"
    raise ValueError("the names are equal")


def not_finite(trees: Mapping[str, Tree], row: int) -> str:
    """Name the first value of a client that is not finite, given its reply by kind and its row in the stack."""
    for kind, tree in trees.items():
        for name, value in sorted(tree.items()):
            if not bool(torch.isfinite(value[row]).all()):
                return f"the {kind} {name!r} {NOT_FINITE}"
    return f"a sum {NOT_FINITE}"


@contextmanager
def same_values(function: str, shared: Tree) -> Iterator[None]:
    """Raise ClientError if a function changes a value of the shared model, in a way that PyTorch does not count."""
    before = {name: value.clone() for name, value in shared.items()}
    yield
    for name, value in before.items():
        if not torch.equal(shared[name], value):
            raise ClientError(complaint(function, name, SHARED))
