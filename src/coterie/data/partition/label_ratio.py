"""Two classes, and clients from nearly all negative to all positive.

K. Yi, L. Condat, P. Richtárik, "Explicit Personalization and Local Training: Double Communication Acceleration in
Federated Learning", arXiv:2305.13170, Appendix E.1 ("label-wise non-IID"). Client i = 0..n-1 of n has

    r_pos = (i + 1) / n,    r_neg = 1 - r_pos

    1.  shuffle the positive training rows and deal them in proportion to r_pos
    2.  shuffle the negative ones and deal them in proportion to r_neg
    3.  deal the test rows of each class in proportion to the training rows of that class

The paper does not say what becomes of the class that is left over when clients are equally large. Here it is dealt by
the same ratios, so every row is dealt exactly once. Where there are (n + 1) positives to (n - 1) negatives, nothing is
left over: clients are equally large and r_pos is the share of positives in each. Elsewhere the odds of a positive are
those of r_pos times one factor, the same for all clients. Positive is the second of the two labels.
"""

from typing import Annotated

import numpy as np
from pydantic import Field

from coterie.data.examples import Assignment, Examples
from coterie.data.partition.dealing import check_classes, clients_of, complete, portions
from coterie.data.partition.partition import Partition
from coterie.errors import UserError
from coterie.settings import settings


@settings
class LabelRatio(Partition):
    """A growing ratio of positives from the first client to the last, of two classes (Scafflix, Appendix E.1)."""

    clients: Annotated[int, Field(ge=2)] = 10
    """Number of clients, new users among them; a single one would have no negatives."""

    def deal(self, examples: Examples, rng: np.random.Generator) -> Assignment:
        check_classes(examples, "label-ratio")
        if len(examples.labels) != 2:
            raise UserError(
                f"partition.name = 'label-ratio' is for two classes and the data set has {len(examples.labels)}; "
                "'dirichlet' and 'classes' are for any number"
            )
        y, i = examples.y_train, np.arange(self.clients)
        ratios = np.stack([self.clients - 1 - i, i + 1], axis=1)  # times n: whole numbers round without error
        totals = np.bincount(y, minlength=2)
        counts = portions(ratios, totals)
        if starved := np.count_nonzero(counts.sum(axis=1) == 0):
            raise UserError(
                f"partition.clients = {self.clients}: {starved} of them get no training example "
                f"of {totals[0]} negative and {totals[1]} positive ones; lower it"
            )
        client_of_row = clients_of(y, counts, rng.permutation(len(y)))
        return complete(client_of_row, examples, self.held_out(self.clients, rng), rng)
