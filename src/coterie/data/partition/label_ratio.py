"""Partition of two classes. Clients range from nearly all negative to all positive.

K. Yi, L. Condat, P. Richtárik, "Explicit Personalization and Local Training: Double Communication Acceleration in
Federated Learning", arXiv:2305.13170, Appendix E.1 ("label-wise non-IID"). Client i = 0..n-1 of n has

    r_pos = (i + 1) / n,    r_neg = 1 - r_pos

    1.  shuffle the positive training rows and divide them in proportion to r_pos
    2.  shuffle the negative training rows and divide them in proportion to r_neg
    3.  divide the test rows of each class in proportion to the training rows of that class

With clients of equal size, one of the classes can have rows left over. The paper does not say what happens to them.
Here all rows are divided by the same ratios, so each row is used exactly once. If there are (n + 1) positives to
(n - 1) negatives, nothing is left over: clients have equal size, and r_pos is the share of positives in each. Otherwise
the odds of a positive are those of r_pos times one factor, which is the same for all clients. The second of the two
labels is the positive one.
"""

from typing import Annotated

import numpy as np
from pydantic import Field

from coterie.data.examples import Assignment, Examples
from coterie.data.partition.dealing import check_classes, check_size, clients_of, complete, portions
from coterie.data.partition.partition import Partition
from coterie.errors import UserError
from coterie.settings import settings


@settings
class LabelRatio(Partition):
    """Two classes, with a share of positives that grows from the first client to the last (Scafflix, Appendix E.1)."""

    clients: Annotated[int, Field(ge=2)] = 10
    """Number of clients, including new users. At least 2, because a single client would have no negatives."""

    def deal(self, examples: Examples, rng: np.random.Generator) -> Assignment:
        check_classes(examples, "label-ratio")
        if len(examples.labels) != 2:
            raise UserError(
                f"partition.name = 'label-ratio' needs two classes, but the data set has {len(examples.labels)}; "
                "use 'dirichlet' or 'classes', which work with any number of classes"
            )
        check_size(len(examples.y_train), self.clients, 1, "partition.clients")
        y, i = examples.y_train, np.arange(self.clients)
        ratios = np.stack([self.clients - 1 - i, i + 1], axis=1)  # times n: integers have no rounding error
        totals = np.bincount(y, minlength=2)
        counts = portions(ratios, totals)
        if starved := np.count_nonzero(counts.sum(axis=1) == 0):
            raise UserError(
                f"partition.clients = {self.clients}: {starved} clients get none of the {totals[0]} negative and "
                f"{totals[1]} positive training examples; lower it"
            )
        client_of_row = clients_of(y, counts, rng.permutation(len(y)))
        return complete(client_of_row, examples, self.held_out(self.clients, rng), rng)
