"""A folder of your own, from a recipe: what `Federation.from_folder` does, for the partition `natural`."""

from typing import Annotated

from pydantic import Field

from coterie.data.examples import Examples
from coterie.data.federation import Federation
from coterie.data.own.examples import examples
from coterie.data.sets.own import Own
from coterie.settings import Count, settings


@settings
class Folder(Own):
    """Your folder with npz, CSV, Parquet or images of each client; with partition.name = "natural"."""

    size: Annotated[list[Count], Field(min_length=2, max_length=2)] | None = None
    """[height, width] that images are resized to."""
    grey: bool = False
    """Take the colours out of images."""

    def load(self) -> Examples:
        size = None if self.size is None else (self.size[0], self.size[1])
        return examples(Federation.from_folder(self.path, size=size, grey=self.grey, **self.said()))
