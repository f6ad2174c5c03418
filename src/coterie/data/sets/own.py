"""Settings for your own data in a recipe."""

from dataclasses import field
from typing import Any, ClassVar

from coterie.data.sets.dataset import Dataset
from coterie.errors import UserError
from coterie.settings import Share, Size, settings


@settings
class Own(Dataset):
    """Base class of your own data sets."""

    usual_partition: ClassVar[str] = "natural"
    usual_new_users: ClassVar[float | None] = 0.0

    path: str = ""
    """Path of the file or folder. Required."""
    label: str = "y"
    """Column of a table that holds the label."""
    split: str = ""
    """Column of a table that says train, test or validation. Default: none; the split is drawn at random."""
    features: list[str] = field(default_factory=list)
    """Feature columns of a table; they must be numeric. Default: all columns without another role."""
    test: Share = 0.25
    """Share of each client's examples used for testing if the data contain no test split."""
    validation: Share = 0.0
    """Share of each client's examples used for validation if the data contain no validation split."""
    seed: Size = 0
    """Seed of the random split. It is separate from run.seed, so that all runs use the same test examples."""
    regression: bool = False
    """Whether the labels are numbers to predict, not classes. Scale them to about unit variance."""
    tokens: bool = False
    """Whether the inputs are integer tokens for a model with an embedding, not quantities."""

    def said(self) -> dict[str, Any]:
        """Return the keyword arguments for `Federation.from_table` and `Federation.from_folder`."""
        if not self.path:
            raise UserError(f"data.path is missing; set it to the path of your {type(self).__name__.lower()}")
        return {
            "label": self.label,
            "split": self.split or None,
            "features": self.features or None,
            "test": self.test,
            "validation": self.validation,
            "seed": self.seed,
            "regression": self.regression,
            "tokens": self.tokens,
        }
