"""A table of your own, from a recipe: what `Federation.from_table` does, for the partition `natural`."""

from coterie.data.examples import Examples
from coterie.data.federation import Federation
from coterie.data.own.examples import examples
from coterie.data.sets.own import Own
from coterie.settings import settings


@settings
class Table(Own):
    """Your CSV or Parquet file with a column that says whose each row is; with partition.name = "natural"."""

    client: str = "site"
    """The column of clients."""

    def load(self) -> Examples:
        return examples(Federation.from_table(self.path, client=self.client, **self.said()))
