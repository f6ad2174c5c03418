"""A folder of your own, from a recipe: what `Federation.from_folder` does, for the partition `natural`."""

from dataclasses import field
from typing import Annotated, ClassVar

from pydantic import Field

from coterie.data.dataset import Dataset
from coterie.errors import UserError
from coterie.federation import Examples, Federation
from coterie.own.examples import examples
from coterie.settings import Count, Share, Size, settings


@settings
class Folder(Dataset):
    """Your folder with npz, CSV, Parquet or images of each client; with partition.name = "natural"."""

    usual_partition: ClassVar[str] = "natural"

    path: str = ""
    label: str = "y"
    """The column of classes in tables."""
    split: str = ""
    """The column of tables that says train, test or validation, if there is one."""
    features: list[str] = field(default_factory=list)
    """Columns of numbers in tables; all others unless given."""
    size: Annotated[list[Count], Field(min_length=2, max_length=2)] | None = None
    """[height, width] that images are resized to."""
    grey: bool = False
    """Take the colours out of images."""
    test: Share = 0.25
    """Share of each client's examples to test on, where the data do not say which."""
    validation: Share = 0.0
    """Likewise for choosing between models."""
    seed: Size = 0
    """Of the draw of those shares; apart from run.seed, so that all runs have the same test examples."""
    regression: bool = False
    """The labels are numbers to be predicted as such, of about unit variance; not classes."""

    def load(self) -> Examples:
        if not self.path:
            raise UserError("data.path: say where the folder is")
        federation = Federation.from_folder(
            self.path,
            label=self.label,
            split=self.split or None,
            features=self.features or None,
            size=None if self.size is None else (self.size[0], self.size[1]),
            grey=self.grey,
            test=self.test,
            validation=self.validation,
            seed=self.seed,
            regression=self.regression,
        )
        return examples(federation)
