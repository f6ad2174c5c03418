"""Calls of the functions of a method that need no client. What they return is checked, and a mistake is named."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from coterie.core.method import Exchanges, Method, Passes, Round, Task, Tree, Update
from coterie.core.tree import is_tree, stack, unstack
from coterie.core.untouched import INITIAL, SHARED, untouched
from coterie.errors import UserError


def shared_of(method: Method, task: Task) -> Tree:
    """Return what the server sends in the first round."""
    tree: Tree = _answer(method, "init_shared", (task,), is_tree, "a dict of tensors by name")
    return tree


def memory_of(method: Method, task: Task, shared: Tree) -> Tree:
    """Return what the server keeps between rounds."""
    with untouched(f"{type(method).__name__}.init_memory", {SHARED: shared, INITIAL: task.initial}, UserError):
        tree: Tree = _answer(method, "init_memory", (task, shared), is_tree, "a dict of tensors by name, such as {}")
    return tree


def planned(method: Method, rnd: Round) -> Round:
    """Return the round as the method announces it."""

    def fits(announced: Any) -> bool:
        return isinstance(announced, Round) and announced.steps >= 1

    announced: Round = _answer(method, "plan", (rnd,), fits, "rnd.announce(steps=...) with at least one local step")
    return announced


def weights_of(method: Method, sizes: Tensor, rnd: Round) -> Tensor:
    """Return the weights of the clients of a cohort with these numbers of examples."""

    def fits(weights: Any) -> bool:
        fitting = isinstance(weights, Tensor) and weights.shape == sizes.shape and not weights.is_complex()
        valid = fitting and bool((torch.isfinite(weights) & (weights >= 0)).all())
        return valid and (bool(weights.any()) or not sizes.any())

    expected = f"a tensor of {len(sizes)} finite numbers >= 0, one for each client of the cohort, and not all zero"
    weights: Tensor = _answer(method, "weights", (sizes, rnd), fits, expected)
    return weights


def letter_of(method: Method, task: Task) -> Tree:
    """Return a letter as clients send it; it is empty if the method has none."""
    if not isinstance(method, Exchanges):
        return {}
    letter: Tree = _answer(method, "letter_form", (task,), is_tree, "a dict of tensors by name")
    return letter


def exchanged(method: Method, letters: Mapping[int, Tree], rnd: Round) -> dict[int, Tree]:
    """Return the letters that go back to clients, by client.

    All tensors are contiguous, as they are after a network, so that a simulation computes with the same bits.
    """
    if not isinstance(method, Exchanges):
        return {}
    clients = sorted(letters)

    def fits(rows: Any) -> bool:
        return is_tree(rows) and all(value.ndim and len(value) == len(clients) for value in rows.values())

    sent = stack([{name: value.contiguous() for name, value in letters[client].items()} for client in clients])
    expected = f"a dict of tensors with {len(clients)} rows, one for each letter"
    rows: Tree = _answer(method, "exchange", (sent, rnd), fits, expected)
    back = unstack({name: value.contiguous() for name, value in rows.items()}, len(clients))
    return dict(zip(clients, back, strict=True))


def notes_of(method: Method, update: Update, rnd: Round) -> dict[str, float | str]:
    """Return what the method records about a round."""

    def fits(notes: Any) -> bool:
        return isinstance(notes, dict) and all(
            isinstance(name, str) and isinstance(note, int | float | str) for name, note in notes.items()
        )

    expected = "a dict of Python numbers or text by name, such as {}"
    notes: dict[str, float | str] = _answer(method, "notes", (update, rnd), fits, expected)
    return notes


def passes_of(method: Method, size: int, rnd: Round) -> Passes | None:
    """Return the declared cost of a local update on so many examples, or None if it is not declared."""

    def fits(passes: Any) -> bool:
        return passes is None or (isinstance(passes, Passes) and all(0 <= each < math.inf for each in passes))

    passes: Passes | None = _answer(method, "passes", (size, rnd), fits, "Passes(...) of numbers >= 0, or None")
    return passes


def _answer(method: Method, function: str, given: tuple[Any, ...], fits: Callable[[Any], bool], expected: str) -> Any:
    """Call a function of a method. Raises UserError if it fails, or if what it returns does not fit."""
    name = f"{type(method).__name__}.{function}"
    try:
        answer = getattr(method, function)(*given)
        fitting = fits(answer)
    except (UserError, MemoryError):
        raise
    except Exception as error:
        raise UserError(f"{name} failed, and must return {expected}: {type(error).__name__}: {error}") from error
    if not fitting:
        raise UserError(f"{name} must return {expected}, not {answer!r:.200}")
    return answer
