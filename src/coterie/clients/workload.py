"""What an engine computes with: the work, and the data of all simulated clients."""

from collections.abc import Sequence
from dataclasses import dataclass

from coterie.aggregate.rule import Rule
from coterie.clients.work import Work
from coterie.core.data import Data
from coterie.data.federation import Federation


@dataclass(frozen=True)
class Workload:
    """The work of simulated clients, their data, and the rule that aggregates their replies."""

    work: Work
    federation: Federation
    aggregate: Rule

    def num_outputs(self, client: int) -> int:
        """Return the width of a client's head."""
        return self.work.num_outputs(self.federation.num_outputs(client, self.work.labels))

    def widths(self, clients: Sequence[int]) -> list[int]:
        """Return the width of the head of each client."""
        if self.work.shares_head:
            return [self.work.task.num_outputs] * len(clients)
        return [self.num_outputs(client) for client in clients]

    def sizes(self, clients: Sequence[int], splits: Sequence[str]) -> list[tuple[int, ...]]:
        """Return for each client the number of its examples in each of the splits."""
        columns = [self.federation.sizes(split)[list(clients)].tolist() for split in splits]
        return list(zip(*columns, strict=True)) if columns else [()] * len(clients)

    def data(self, client: int, split: str, index: int) -> Data:
        """Return a client's examples, with its random stream in that round."""
        (stream,) = self.work.streams([self.federation.ids[client]], index)
        return self.federation.data(client, split, self.work.labels, stream, self.num_outputs(client))

    def gather(self, clients: Sequence[int], split: str, index: int, with_inputs: bool = True) -> Data:
        """Return the examples of several clients with heads of one width: stacked, padded and masked.

        The inputs may be a view of the federation's if no layer of the model can overwrite them.
        """
        ids = self.federation.ids
        keys = self.work.streams([ids[client] for client in clients], index)
        width = self.num_outputs(clients[0])
        fixed = self.work.task.chain is not None
        return self.federation.gather(clients, split, self.work.labels, keys, width, with_inputs, may_view=fixed)
