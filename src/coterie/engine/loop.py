"""The reference engine, and the debugger."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from coterie.engine.engine import Engine
from coterie.settings import settings


@settings
class Loop(Engine):
    """one client after another, the reference for all others"""

    def each_client(self, function: Callable[..., Any], *arguments: Iterable[Any]) -> Iterator[Any]:
        return map(function, *arguments)
