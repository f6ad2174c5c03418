"""A table of your own, from a recipe: what `Federation.from_table` does, for the partition `natural`."""

from dataclasses import field
from typing import ClassVar

from coterie.data.dataset import Dataset
from coterie.errors import UserError
from coterie.federation import Examples, Federation
from coterie.own.examples import examples
from coterie.settings import Share, Size, settings


@settings
class Table(Dataset):
    """Your CSV or Parquet file with a column that says whose each row is; with partition.name = "natural"."""

    usual_partition: ClassVar[str] = "natural"

    path: str = ""
    client: str = "site"
    """The column of clients."""
    label: str = "y"
    """The column of classes."""
    split: str = ""
    """The column that says train, test or validation, if there is one."""
    features: list[str] = field(default_factory=list)
    """Columns of numbers; all others unless given."""
    test: Share = 0.25
    """Share of each client's examples to test on, unless there is a split."""
    validation: Share = 0.0
    """Likewise for choosing between models."""
    seed: Size = 0
    """Of the draw of those shares; apart from run.seed, so that all runs have the same test examples."""
    regression: bool = False
    """The labels are numbers to be predicted as such, of about unit variance; not classes."""

    def load(self) -> Examples:
        if not self.path:
            raise UserError("data.path: say where the table is")
        federation = Federation.from_table(
            self.path,
            client=self.client,
            label=self.label,
            split=self.split or None,
            features=self.features or None,
            test=self.test,
            validation=self.validation,
            seed=self.seed,
            regression=self.regression,
        )
        return examples(federation)
