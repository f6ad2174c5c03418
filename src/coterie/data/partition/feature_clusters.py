"""Partition with feature skew: clients have different kinds of inputs.

K. Yi, L. Condat, P. Richtárik, "Explicit Personalization and Local Training: Double Communication Acceleration in
Federated Learning", arXiv:2305.13170, Appendix E.1 ("feature-wise non-IID").

    1.  k-means (Lloyd, from one k-means++ start) with as many clusters as clients, on the training inputs alone
    2.  each cluster is a client
    3.  a test row goes to the nearest centre among the clients that train on its class

Without the condition in step 3, a client could be tested on a class outside its label set. k-means refills empty
clusters, unless there are fewer distinct inputs than clusters, which is an error. k-means runs in one thread: several
threads add their sums in any order, and the last digit could change the client of a row. The work grows with rows times
clients, so this partition is not suitable for ten thousand clients.
"""

import logging
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import pairwise_distances_argmin
from threadpoolctl import threadpool_limits

from coterie.core.data import Index
from coterie.data.examples import Assignment, Examples
from coterie.data.partition.dealing import check_size, rows_of, tally
from coterie.data.partition.partition import Partition
from coterie.errors import UserError
from coterie.settings import Count, settings

logger = logging.getLogger("coterie")


@settings
class FeatureClusters(Partition):
    """One client for each k-means cluster of the inputs (Scafflix, Appendix E.1)."""

    clients: Count = 10
    """Number of clusters, which is the number of clients, including new users."""

    def deal(self, examples: Examples, rng: np.random.Generator) -> Assignment:
        check_size(len(examples.y_train), self.clients, 1, "partition.clients")
        with threadpool_limits(limits=1):
            client_of_row, centres = _clusters(_flat(examples.x_train), self.clients, rng)
            of_train, of_test, number = examples.strata()
            counts = tally(client_of_row, of_train, self.clients, number)
            client_of_test = _nearest(_flat(examples.x_test), of_test, centres, counts > 0)
        return Assignment(
            rows_of(client_of_row, self.clients),
            rows_of(client_of_test, self.clients),
            examples.label_sets(counts),
            self.held_out(self.clients, rng),
        )


def _flat(x: NDArray[Any]) -> NDArray[Any]:
    return x.reshape(len(x), int(np.prod(x.shape[1:])))


def _clusters(x: NDArray[Any], number: int, rng: np.random.Generator) -> tuple[Index, NDArray[Any]]:
    """Do step 1. Return the cluster of each row, and the centres."""
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        found = KMeans(number, n_init=1, random_state=int(rng.integers(2**31))).fit(x)
    if (distinct := len(np.unique(found.labels_))) < number:
        raise UserError(f"partition.clients = {number}: the inputs form only {distinct} clusters; lower it")
    return found.labels_.astype(np.int64), found.cluster_centers_


def _nearest(x: NDArray[Any], y: Index, centres: NDArray[Any], holds: NDArray[np.bool_]) -> Index:
    """Do step 3. Return the client of each test row, or -1 if no client holds its class."""
    client_of_row = np.full(len(y), -1)
    for label in np.unique(y):
        rows, holders = np.flatnonzero(y == label), np.flatnonzero(holds[:, label])
        if len(holders):
            client_of_row[rows] = holders[pairwise_distances_argmin(x[rows], centres[holders])]
        else:
            logger.info(f"{len(rows):,} test examples are omitted, because no client trains on their class")
    return client_of_row
