"""A table with your own data, for use in a recipe. It calls `Federation.from_table`."""

from coterie.data.examples import Examples
from coterie.data.federation import Federation
from coterie.data.own.examples import examples
from coterie.data.sets.own import Own
from coterie.settings import settings


@settings
class Table(Own):
    """Your own CSV or Parquet file with a column that identifies the client. Use partition.name = "natural"."""

    client: str = "site"
    """Column that identifies the client."""

    def load(self) -> Examples:
        return examples(Federation.from_table(self.path, client=self.client, **self.said()))
