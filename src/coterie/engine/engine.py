"""The only seam between engines: how one function is applied to each client of a cohort."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any


class Engine(ABC):
    @abstractmethod
    def each_client(self, function: Callable[..., Any], *arguments: Iterable[Any]) -> Iterator[Any]:
        """function(first of each argument), function(second of each), ...: in order, whatever the way."""
