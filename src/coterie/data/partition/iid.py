"""IID partition: all clients have the same distribution and the same size. It is the baseline for non-IID partitions.

H. B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas, "Communication-Efficient Learning of Deep Networks
from Decentralized Data", AISTATS 2017, Section 3.

    1.  shuffle the training rows
    2.  give them to the clients one at a time, in turn, so that sizes differ by at most one
    3.  divide the test rows of each class in proportion to the training rows of that class
"""

import numpy as np

from coterie.data.examples import Assignment, Examples
from coterie.data.partition.dealing import check_size, complete
from coterie.data.partition.partition import Partition
from coterie.settings import Count, settings


@settings
class IID(Partition):
    """Equal shares of the shuffled data set (FedAvg, Section 3)."""

    clients: Count = 50
    """Number of clients, including new users."""

    def deal(self, examples: Examples, rng: np.random.Generator) -> Assignment:
        num_rows = len(examples.y_train)
        check_size(num_rows, self.clients, 1, "partition.clients")
        client_of_row = rng.permutation(np.arange(num_rows) % self.clients)
        return complete(client_of_row, examples, self.held_out(self.clients, rng), rng)
