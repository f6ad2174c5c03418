"""Which sites take part in a round: those that are connected, and those that join."""

import logging
import time
from collections.abc import Callable

import numpy as np

from coterie.clients.sites import Facts, Patience, Sites
from coterie.clients.transport import Transport
from coterie.core.data import Index
from coterie.errors import StoppedError
from coterie.server.population import Presence

logger = logging.getLogger("coterie")
PAUSE = 0.5
"""Seconds between two looks at who is connected."""


class Reachable(Presence):
    """The sites that are connected when a round begins. A site that comes later joins if it accepts the run."""

    def __init__(
        self, clients: Sites, transport: Transport, patience: Patience, join: Callable[[str], Facts | None]
    ) -> None:
        self._clients, self._transport, self._patience, self._join = clients, transport, patience, join
        self._rounds: dict[int, Index] = {}
        self._declined: set[str] = set()

    def present(self, index: int) -> Index:
        if index not in self._rounds:
            there = self._connected(index) if index else self._transport.connected()
            for name in sorted(there - set(self._clients.ids) - self._declined) if index > 1 else ():
                if (facts := self._join(name)) is None:
                    self._declined.add(name)
                else:
                    self._clients.add(name, facts)
                    logger.info("round %d: %s joins, with %d training examples", index, name, facts.splits["train"])
            ids, is_new = self._clients.ids, self._clients.is_new
            self._rounds[index] = np.array(
                [i for i, name in enumerate(ids) if name in there and not is_new[i]], np.int64
            )
        return self._rounds[index]

    def _connected(self, index: int) -> set[str]:
        """Wait until enough sites are connected for a round."""
        end = time.monotonic() + self._patience.seconds
        training = {name for name, each in self._clients.facts.items() if not each.is_new}
        while len((there := self._transport.connected()) & training) < self._patience.minimum:
            if time.monotonic() > end:
                raise StoppedError(
                    f"round {index}: only {len(there & training)} of {len(training)} sites are connected, fewer than "
                    f"{self._patience.minimum}. The run stops here, and can be resumed"
                )
            time.sleep(PAUSE)
        return there
