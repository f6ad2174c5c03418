"""Label skew: how the rows of each class are spread over the clients is drawn from a Dirichlet distribution.

M. Yurochkin et al., "Bayesian Nonparametric Federated Learning of Neural Networks", ICML 2019, Section 4: one draw for
each *class*, over the clients. (T.-M. H. Hsu, H. Qi, M. Brown, arXiv:1909.06335, draw for each *client*, over the
classes, which leaves rows over.)

    1.  for each class draw the clients' shares from a symmetric Dirichlet distribution: alpha near 0 for clients with
        few classes, large alpha for nearly IID ones; sizes differ as well
    2.  if a client has fewer than `minimum` training rows, draw again, ten times at most
    3.  a client that is still short asks for rows of the class whose draw gave it most, then of the next, and so on;
        others give of that class in proportion to what they hold of it and can spare, so nobody falls below `minimum`
    4.  shuffle the training rows of each class and cut them into the numbers of 1 to 3
    5.  deal the test rows of each class in proportion to the training rows of that class

Steps 3 and 5 are ours. Public code draws until all are large enough, which with many clients never ends; and it draws
again for the test rows, so that a client is tested on another mix than it trains on. Step 3 ends: nobody who receives
gives, so what can be spared of a class only falls, and a client that is short after asking for every class would mean
that nobody can spare a row, although there are `minimum` rows for everyone.
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

logger = logging.getLogger("coterie")


@settings
class Dirichlet(Partition):
    """Each class spread over the clients by Dirichlet shares: label skew (Yurochkin et al. 2019)."""

    clients: Count = 50
    """Number of clients, new users among them."""
    alpha: Concentration = 0.5
    """Concentration: small for few classes a client, large for nearly IID clients."""
    minimum: Count = 10
    """Training examples that every client has at least."""

    def deal(self, examples: Examples, rng: np.random.Generator) -> Assignment:
        check_classes(examples, "dirichlet")
        y = examples.y_train
        check_size(len(y), self.clients, self.minimum, "partition.clients or partition.minimum")
        counts = self._draw(np.bincount(y, minlength=len(examples.labels)), rng)
        client_of_row = clients_of(y, counts, rng.permutation(len(y)))
        return complete(client_of_row, examples, self.held_out(self.clients, rng), rng)

    def _draw(self, totals: Index, rng: np.random.Generator) -> Index:
        """Steps 1 to 3: (I, C), how many rows of each class each client has."""
        for _ in range(DRAWS):
            shares = rng.dirichlet(np.full(self.clients, self.alpha), size=len(totals)).T
            counts = portions(shares, totals, rng.random(len(totals)))
            short = np.flatnonzero(counts.sum(axis=1) < self.minimum)
            if not len(short):
                return counts
        logger.info(
            f"{len(short):,} of {self.clients:,} clients drew fewer than {self.minimum} training examples "
            "and were given some of others'"
        )
        leaning = shares[short] * totals
        # Tiny shares underflow to 0; among equals chance decides.
        wishes = np.lexsort((rng.random(leaning.shape), -leaning), axis=1)
        _feed(counts, short, wishes, self.minimum)
        return counts


def _feed(counts: Index, short: Index, wishes: NDArray[np.intp], minimum: int) -> None:
    """Step 3, in place. `wishes` are the classes of the clients in `short`, most wanted first."""
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
