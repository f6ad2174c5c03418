"""Federations built from the users' own data, after it is checked and split."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from coterie import streams
from coterie.core.data import Index
from coterie.data.examples import Choices
from coterie.data.federation import Federation
from coterie.data.own.parts import NOTHING, SPLITS, Checked, Part, Parts, check, labels
from coterie.data.own.pile import Pile
from coterie.data.own.split import split as split_rows
from coterie.data.ragged import Ragged
from coterie.errors import UserError
from coterie.registry import nearest


def pool(
    clients: Mapping[str, Parts],
    *,
    new: Sequence[str] = (),
    classes: Mapping[str, Sequence[Any]] | None = None,
    test: float = 0.25,
    validation: float = 0.0,
    seed: int = 0,
    regression: bool = False,
    tokens: bool = False,
    **unknown: Any,
) -> Federation:
    """Build a federation from the clients' examples; see `Choices` for the keyword arguments."""
    if unknown:
        name, there = next(iter(unknown)), Choices.__annotations__
        raise TypeError(
            f"unknown argument {name!r}{nearest(name, there)}; besides the data, available: {', '.join(there)}"
        )
    if isinstance(new, str):
        raise UserError(f"`new` must be a list of clients, not a text; for one client, use new=[{new!r}]")
    classes = {str(client): own for client, own in (classes or {}).items()}
    held_out = {str(client) for client in new}
    _check_seed(seed)
    _check_choices(clients, held_out, classes, test, validation)
    given: set[str] = set()
    label_sets, xs, ys = Pile(), Pile(), Pile()
    sizes = np.zeros((len(clients), len(SPLITS)), dtype=np.int64)
    shape: tuple[int, ...] | None = None
    for row, (client, parts) in zip(sizes, clients.items(), strict=True):
        given |= parts.keys()
        own = NOTHING.y if regression else np.unique(_declared(client, classes, parts["train"]))
        label_sets.add(own)
        checked: dict[str, Checked] = {}
        for split, brought in parts.items():
            checked[split] = check(client, split, brought, None if regression else own, shape, tokens)
            shape = shape or checked["train"].x.shape[1:]
        shares = {"test": test, "validation": validation}
        taken = {split: share for split, share in shares.items() if split not in parts and share}
        checked |= _taken(client, checked["train"], taken, seed)
        for i, split in enumerate(SPLITS):
            part = checked.get(split, NOTHING)
            row[i] = len(part.y)
            xs.add(part.x)
            ys.add(part.y)
    if len(label_sets.kinds) > 1:
        raise UserError("some clients have integer labels and others have strings; use the same type for all clients")
    owned, y = label_sets.joined(), ys.joined()
    for label in owned if owned.dtype.kind == "O" else ():
        _check_text(label, "a label")
    union = np.unique(owned)
    blocks = dict(zip(SPLITS, _blocks(sizes), strict=True))
    return Federation(
        ids=tuple(clients),
        labels=tuple(union.tolist()),
        x=torch.from_numpy(xs.joined()),
        y=torch.from_numpy(y if regression else np.searchsorted(union, y)),
        splits={split: blocks[split] for split in SPLITS if split != "validation" or split in given or validation},
        classes=Ragged(np.searchsorted(union, owned), label_sets.offsets()),
        is_new=np.array([client in held_out for client in clients]),
    )


def _blocks(sizes: Index) -> Iterator[Ragged]:
    """Yield the rows of each split. The rows of a client follow one another, split after split.

    Args:
        sizes: number of rows (clients, splits).
    """
    ends = sizes.cumsum().reshape(sizes.shape)
    for size, end in zip(sizes.T, ends.T, strict=True):
        offsets = np.cumsum(np.append(0, size))
        yield Ragged(np.arange(offsets[-1]) + np.repeat(end - offsets[1:], size), offsets)


def _check_choices(
    clients: Mapping[str, Parts],
    new: Collection[str],
    classes: Mapping[str, Sequence[Any]],
    test: float,
    validation: float,
) -> None:
    if not clients:
        raise UserError("a federation needs at least one client")
    for client in clients:
        _check_text(client, f"the name of client {client!r}")
    for what, named in (("new", new), ("classes", classes)):
        if unknown := set(named) - set(clients):
            raise UserError(f"`{what}` names {sorted(unknown)}, which are not among the clients; check the spelling")
    if not (test >= 0 and validation >= 0 and test + validation < 1):
        raise UserError(
            f"`test` and `validation` must not be negative, and `test` + `validation` must be less than 1 "
            f"(got {test} + {validation}), so that some examples remain for training"
        )


def _check_seed(seed: Any) -> None:
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
        raise UserError("`seed` must be a whole number, such as seed=1")


def _check_text(text: str, what: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"{what} has characters that no file can store (half of a surrogate pair); rename it") from None


def _declared(client: str, classes: Mapping[str, Sequence[Any]], train: Part) -> NDArray[Any]:
    if client not in classes:
        return labels(client, train)
    name = f"classes[{client!r}]"
    return labels(client, Part((), classes[client], name, name))


def _taken(client: str, train: Checked, shares: Mapping[str, float], seed: int) -> dict[str, Checked]:
    """Draw the missing splits from a client's training examples, and return them with the remaining training examples.

    The random stream depends on the client's name, so the split does not change when other clients come or go.
    """
    if not shares:
        return {}
    if len(train.y) == 1:  # it stays with the training examples
        return {split: train.take(np.arange(0)) for split in shares} | {"train": train}
    strata = np.zeros(len(train.y)) if train.y.dtype.kind == "f" else train.y
    rows = split_rows(strata, shares, streams.generator(seed, "split", client=client))
    return {split: train.take(chosen) for split, chosen in rows.items()}
