"""Partition with label skew. Dirichlet shares decide how the rows of each class are divided among the clients.

M. Yurochkin et al., "Bayesian Nonparametric Federated Learning of Neural Networks", ICML 2019, Section 4: one draw for
each *class*, over the clients. (T.-M. H. Hsu, H. Qi, M. Brown, arXiv:1909.06335, draw for each *client*, over the
classes, which does not use all rows.)

    1.  for each class, draw the clients' shares from a symmetric Dirichlet distribution: alpha near 0 for clients with
        few classes, large alpha for nearly IID clients; sizes differ as well
    2.  if a client has fewer than `minimum` training rows, draw again, at most ten draws in total
    3.  a client that is still short asks for rows of the class that its draw favours most, then of the next, and so on;
        others give rows of that class in proportion to what they hold and can spare, so none falls below `minimum`
    4.  shuffle the training rows of each class and cut them into the numbers from steps 1 to 3
    5.  divide the test rows of each class in proportion to the training rows of that class

Steps 3 and 5 are ours. Public code repeats step 1 until all clients are large enough, which never ends with many
clients. It also draws again for the test rows, so that a client is tested on a different mix than it trains on.

Step 3 ends. A client that receives rows never gives any, so the rows that can be spared only decrease. If a client were
still short after it has asked for every class, no client could spare a row, although there are `minimum` rows for each.
"""

import logging

import numpy as np
from numpy.typing import NDArray

from coterie.core.data import Index
from coterie.data.examples import Assignment, Examples
from coterie.data.partition.dealing import Concentration, check_classes, check_size, clients_of, complete, portions
from coterie.data.partition.partition import Partition
from coterie.settings import Count, settings

DRAWS = 10
"""Maximum number of draws before rows are moved between clients."""

logger = logging.getLogger("coterie")


@settings
class Dirichlet(Partition):
    """Label skew: each class is divided among the clients by Dirichlet shares (Yurochkin et al. 2019)."""

    clients: Count = 50
    """Number of clients, including new users."""
    alpha: Concentration = 0.5
    """Concentration. Small values give each client few classes; large values give nearly IID clients."""
    minimum: Count = 10
    """Minimum number of training examples of each client."""

    def deal(self, examples: Examples, rng: np.random.Generator) -> Assignment:
        check_classes(examples, "dirichlet")
        y = examples.y_train
        check_size(len(y), self.clients, self.minimum, "partition.clients or partition.minimum")
        counts = self._draw(np.bincount(y, minlength=len(examples.labels)), rng)
        client_of_row = clients_of(y, counts, rng.permutation(len(y)))
        return complete(client_of_row, examples, self.held_out(self.clients, rng), rng)

    def _draw(self, totals: Index, rng: np.random.Generator) -> Index:
        """Do steps 1 to 3. Return the number of rows of each class that each client gets, (I, C)."""
        for _ in range(DRAWS):
            shares = rng.dirichlet(np.full(self.clients, self.alpha), size=len(totals)).T
            counts = portions(shares, totals, rng.random(len(totals)))
            short = np.flatnonzero(counts.sum(axis=1) < self.minimum)
            if not len(short):
                return counts
        logger.info(
            f"{len(short):,} of {self.clients:,} clients drew fewer than {self.minimum} training examples "
            "and received some from other clients"
        )
        leaning = shares[short] * totals
        # Tiny shares underflow to 0. Ties are broken at random.
        wishes = np.lexsort((rng.random(leaning.shape), -leaning), axis=1)
        _feed(counts, short, wishes, self.minimum)
        return counts


def _feed(counts: Index, short: Index, wishes: NDArray[np.intp], minimum: int) -> None:
    """Do step 3, in place. `wishes` lists the classes for each client in `short`, most wanted first."""
    lacking = minimum - counts[short].sum(axis=1)
    spare = np.maximum(counts.sum(axis=1) - minimum, 0)
    for wish in wishes.T:
        for label in np.unique(wish[lacking > 0]):
            askers = np.flatnonzero((wish == label) & (lacking > 0))
            offers = np.minimum(counts[:, label], spare)
            moved = min(lacking[askers].sum(), offers.sum())
            given, taken = portions(lacking[askers], moved), portions(offers, moved)
            counts[short[askers], label] += given
            counts[:, label] -= taken
            lacking[askers] -= given
            spare -= taken
    assert not lacking.any()
