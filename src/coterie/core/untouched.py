"""A guard around functions of a method, which must not change in place what other clients start from."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from coterie.core.tree import Tree
from coterie.errors import ClientError

SHARED, INITIAL = "shared model", "initial model"
"""What is guarded, as a message calls it."""


@contextmanager
def untouched(
    function: str, trees: Mapping[str, Tree], error: type[ClientError] | type[ValueError] = ClientError
) -> Iterator[None]:
    """Raise an error if a function changes a tensor in place, or puts another one into its dict.

    PyTorch counts the changes of a tensor, so nothing is compared. It does not count those through the attribute
    `data`.

    Args:
        function: the function, as a message names it.
        trees: tensors that must stay as they are, by what a message calls them.
        error: the kind of error to raise.
    """
    before = [_versions(tree) for tree in trees.values()]
    yield
    for (kind, tree), own in zip(trees.items(), before, strict=True):
        if (now := _versions(tree)) != own:
            changed = [name for name in {**own, **now} if own.get(name) != now.get(name)]
            raise error(complaint(function, changed[0], kind))


def complaint(function: str, name: str, kind: str) -> str:
    """Return the message about a function that changed a tensor."""
    return (
        f"{function} changed {name!r} of the {kind} in place, itself or in a function that it calls, so that what "
        "comes next would start from something else; compute new tensors and return them"
    )


def _versions(tree: Tree) -> dict[str, tuple[int, int]]:
    return {name: (id(value), value._version) for name, value in tree.items()}
