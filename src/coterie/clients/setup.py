"""What is trained, by which method, on whose data: all that the work for a client depends on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from coterie import streams
from coterie.aggregate.rule import Rule
from coterie.core.counting import CountFlops
from coterie.core.method import Client, Data, Labels, Method, Task, Tree
from coterie.data.federation import Federation


@dataclass(frozen=True)
class Setup:
    method: Method
    task: Task
    federation: Federation
    labels: Labels
    aggregate: Rule
    seed: int

    def create(self, client: int) -> Tree:
        """The personal state that a client starts from."""
        name, outputs = self.federation.ids[client], self.num_outputs(client)
        seed = streams.key(self.seed, "personal", 0, name)
        personal = self.method.init_personal(self.task, Client(name, outputs, seed))
        if not self.settles:
            return personal
        if client not in self._settled:
            with streams.torch_seeded(seed), CountFlops() as counted:
                self._settled[client] = self.method.settle(self.task, personal, self.data(client, "train", 0))
            self._unpaid[client] = counted.total
            for tell in self.watchers:
                tell(len(self._settled))
        return dict(self._settled[client])

    @property
    def settles(self) -> bool:
        """Whether clients make something of their training data before they are first looked at, new users too."""
        return type(self.method).settle is not Method.settle

    @cached_property
    def watchers(self) -> list[Callable[[int], object]]:
        """Whoever wants to be told how many clients have settled, each time that one has."""
        return []

    @cached_property
    def _settled(self) -> dict[int, Tree]:
        """Of clients that were not visited yet, and may be looked at many times: what is done once."""
        return {}

    @cached_property
    def _unpaid(self) -> dict[int, int]:
        return {}

    def settling(self, clients: Sequence[int]) -> int:
        """The operations by which those clients settled, if this is their first visit."""
        return sum(self._unpaid.pop(client, 0) for client in clients)

    @cached_property
    def shares_head(self) -> bool:
        """Whether one head serves all clients."""
        return set(self.task.head) <= self.method.init_shared(self.task).keys()

    def num_outputs(self, client: int) -> int:
        """The width of the head that a client really has: its own, or the one that all share."""
        if self.shares_head:
            return self.task.num_outputs
        return self.federation.num_outputs(client, self.labels)

    def data(self, client: int, split: str, index: int) -> Data:
        """A client's examples, with its stream in that round."""
        key = streams.key(self.seed, "batches", index, self.federation.ids[client])
        return self.federation.data(client, split, self.labels, key, self.num_outputs(client))

    def gather(self, clients: Sequence[int], split: str, index: int) -> Data:
        """The same for several clients whose heads have one width: stacked, padded, masked."""
        keys = [streams.key(self.seed, "batches", index, self.federation.ids[client]) for client in clients]
        return self.federation.gather(clients, split, self.labels, keys, self.num_outputs(clients[0]))
