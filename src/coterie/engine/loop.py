"""The reference engine, and the debugger: one client after another."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from coterie.settings import settings


@settings
class Loop:
    """A plain `for` over the cohort: the reference for all others."""

    def each_client(self, function: Callable[..., Any], *arguments: Iterable[Any]) -> Iterator[Any]:
        """function(first of each), function(second of each), ..., each when it is asked for."""
        return map(function, *arguments)
