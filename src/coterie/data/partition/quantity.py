"""Partition with quantity skew: clients have different sizes and the same distribution.

K. Yi, L. Condat, P. Richtárik, "Explicit Personalization and Local Training: Double Communication Acceleration in
Federated Learning", arXiv:2305.13170, Appendix E.1 ("quantity-wise non-IID", with a concentration of 0.5).

    1.  draw the clients' shares from a symmetric Dirichlet distribution: beta near 0 for a few large clients and many
        small ones, large beta for equal sizes
    2.  each client gets `minimum` training rows; the remaining training rows are divided by the shares
    3.  shuffle the training rows and cut them into the sizes from step 2
    4.  divide the test rows of each class in proportion to the training rows of that class

Other code often repeats step 1 until all clients are large enough. With many clients this never ends, so step 2 is used
instead.
"""

import numpy as np

from coterie.data.examples import Assignment, Examples
from coterie.data.partition.dealing import Concentration, check_size, complete, portions
from coterie.data.partition.partition import Partition
from coterie.settings import Count, settings


@settings
class Quantity(Partition):
    """Quantity skew: client sizes from a Dirichlet distribution, IID labels (Scafflix, Appendix E.1)."""

    clients: Count = 50
    """Number of clients, including new users."""
    beta: Concentration = 0.5
    """Concentration. Small values give very different sizes; large values give nearly equal sizes."""
    minimum: Count = 1
    """Minimum number of training examples of each client."""

    def deal(self, examples: Examples, rng: np.random.Generator) -> Assignment:
        num_rows = len(examples.y_train)
        check_size(num_rows, self.clients, self.minimum, "partition.clients or partition.minimum")
        shares = rng.dirichlet(np.full(self.clients, self.beta))
        sizes = self.minimum + portions(shares, num_rows - self.clients * self.minimum, rng.random())
        client_of_row = rng.permutation(np.repeat(np.arange(self.clients), sizes))
        return complete(client_of_row, examples, self.held_out(self.clients, rng), rng)
