"""Which sites take part in a round: those that are connected, those that join, and those that come back."""

import logging
import time
from collections.abc import Callable, Collection

import numpy as np

from coterie.clients.sites import Facts, Patience, Sites
from coterie.clients.transport import Transport
from coterie.core.data import Index
from coterie.errors import StoppedError, UserError
from coterie.server.population import Presence

logger = logging.getLogger("coterie")
PAUSE = 0.5
"""Seconds between two looks at who is connected."""


class Reachable(Presence):
    """The sites that are connected when a round begins. A site that comes later joins if it accepts the run."""

    def __init__(
        self,
        clients: Sites,
        transport: Transport,
        patience: Patience,
        join: Callable[[str], Facts | None],
        missing: Collection[str] = (),
        back: Callable[[str], object] = lambda _: None,
    ) -> None:
        """Take who is there.

        Args:
            clients: all sites of the run.
            transport: the way to the sites.
            patience: how long to wait.
            join: asks a site that is new to take part, and returns what it has, or None if it refuses.
            missing: the sites of a resumed run that were not there when it was resumed.
            back: asks one of these whether it takes part again. Raises UserError or StoppedError if not.
        """
        self._clients, self._transport, self._patience, self._join = clients, transport, patience, join
        self._rounds: dict[int, Index] = {}
        self._declined: set[str] = set()
        self._missing, self._back = set(missing), back
        self._told: set[str] = set()
        """Reasons of sites that have not come back, which are logged once."""

    def present(self, index: int) -> Index:
        if index not in self._rounds:
            there = self._connected(index) if index else self._transport.connected() - self._missing
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
        asked: set[str] = set()
        while len((there := self._there(index, asked)) & training) < self._patience.minimum:
            if time.monotonic() > end:
                raise StoppedError(
                    f"round {index}: only {len(there & training)} of {len(training)} sites are connected, fewer than "
                    f"{self._patience.minimum}. The run stops here, and can be resumed"
                )
            time.sleep(PAUSE)
        return there

    def _there(self, index: int, asked: set[str]) -> set[str]:
        """Return the sites that are connected. Those that were missing are asked, once, whether they take part again.

        `asked` has the names of the sites that were asked; more are added to it.
        """
        there = self._transport.connected()
        for name in sorted(there & self._missing - asked):
            asked.add(name)
            try:
                self._back(name)
            except (UserError, StoppedError) as error:
                if str(error) not in self._told:
                    logger.warning("%s; the site stays absent until it can take part again", error)
                    self._told.add(str(error))
                continue
            self._missing.remove(name)
            logger.info("round %d: %s is back, and takes part again", index, name)
        return there - self._missing
