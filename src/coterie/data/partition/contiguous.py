"""Partition into blocks in file order, as in the Scafflix authors' code for convex problems.

K. Yi, L. Condat, P. Richtárik, "Explicit Personalization and Local Training: Double Communication Acceleration in
Federated Learning", arXiv:2305.13170. The paper names three non-IID splits; its code cuts the file into blocks.

    1.  cut the training rows, in file order, into blocks; sizes differ by at most one, larger blocks first
    2.  cut the test rows of each class, in file order too, in proportion to the blocks' training rows of that class

Step 2 does not use plain blocks of the test file, because these can contain classes that the training block does not
have. The skew of the clients depends on the order of the file. The seed decides which clients are new and how test
shares are rounded.
"""

import numpy as np

from coterie.data.examples import Assignment, Examples
from coterie.data.partition.dealing import check_size, complete
from coterie.data.partition.partition import Partition
from coterie.settings import Count, settings


@settings
class Contiguous(Partition):
    """Equal blocks of the data set in file order (as in the code of Scafflix)."""

    clients: Count = 50
    """Number of clients, including new users."""

    def deal(self, examples: Examples, rng: np.random.Generator) -> Assignment:
        num_rows = len(examples.y_train)
        check_size(num_rows, self.clients, 1, "partition.clients")
        client_of_row = np.sort(np.arange(num_rows) % self.clients)
        return complete(client_of_row, examples, self.held_out(self.clients, rng), rng, in_file_order=True)
