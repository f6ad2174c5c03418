"""A folder with your own data, for use in a recipe. It calls `Federation.from_folder`."""

from typing import Annotated

from pydantic import Field

from coterie.data.examples import Examples
from coterie.data.federation import Federation
from coterie.data.own.examples import examples
from coterie.data.sets.own import Own
from coterie.settings import Count, settings


@settings
class Folder(Own):
    """Your own folder with npz, CSV or Parquet files or images for each client. Use partition.name = "natural"."""

    size: Annotated[list[Count], Field(min_length=2, max_length=2)] | None = None
    """[height, width] to which images are resized. Default: keep their size."""
    grey: bool = False
    """Whether to convert images to greyscale."""

    def load(self) -> Examples:
        size = None if self.size is None else (self.size[0], self.size[1])
        return examples(Federation.from_folder(self.path, size=size, grey=self.grey, **self.said()))
