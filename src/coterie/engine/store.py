"""What clients keep between their visits, in memory; made on the first visit."""

from collections.abc import Callable

from coterie.tree import Tree


class PersonalStore:
    """A client that was never visited has what `create` gives, and takes no room."""

    def __init__(self, create: Callable[[int], Tree]) -> None:
        self._create = create
        self._kept: dict[int, Tree] = {}

    def __getitem__(self, client: int) -> Tree:
        return self._kept[client] if client in self._kept else self._create(client)

    def __setitem__(self, client: int, personal: Tree) -> None:
        self._kept[client] = personal

    def flat(self) -> Tree:
        """All that is kept as one tree, for a checkpoint."""
        return {f"{i}/{name}": value for i in sorted(self._kept) for name, value in self._kept[i].items()}

    def restore(self, flat: Tree) -> None:
        self._kept = {}
        for path, value in flat.items():
            client, name = path.split("/", 1)
            self._kept.setdefault(int(client), {})[name] = value
