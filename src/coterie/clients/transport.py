"""The way to real sites: sealed bytes go out, sealed bytes come back. Which library carries them is not known here."""

import ipaddress
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Literal, NamedTuple

Code = Literal["late", "lost", "refused", "unknown", "too large"]


class Failure(NamedTuple):
    """The reason why a site did not answer."""

    code: Code
    """`late`: asked, but no reply in time. `lost`: not connected. `refused`: the site's courier does not accept this
    run. `unknown`: no site has this name. `too large`: the request or the reply exceeds the limit."""
    reason: str


def never(_answered: set[str]) -> bool:
    """Return False: wait for all sites."""
    return False


def is_loopback(host: str) -> bool:
    """Return whether only this machine can connect to an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Transport(ABC):
    """A connection to the sites of a federation, by their names.

    The name of a site follows from the key with which it signs. No site can choose or claim a name.
    """

    @abstractmethod
    def connected(self) -> set[str]:
        """Return the names of the sites that can be asked now."""

    @abstractmethod
    def ask(
        self, requests: Mapping[str, bytes], seconds: float, enough: Callable[[set[str]], bool] = never
    ) -> Iterator[tuple[str, bytes | Failure]]:
        """Send each site its request, and yield replies in the order in which they come.

        After `seconds`, or as soon as `enough` holds for the names of the sites that have answered, a `Failure` is
        yielded for each site that has not. A site that is not connected is asked as soon as it connects. A site may
        receive the same request more than once, and has to answer it in the same way.
        """

    @abstractmethod
    def close(self) -> None:
        """End all processes and connections of this transport. Sites stop being connected."""
