"""What a recipe says of data of your own, wherever they lie."""

from dataclasses import field
from typing import Any, ClassVar

from coterie.data.sets.dataset import Dataset
from coterie.errors import UserError
from coterie.settings import Share, Size, settings


@settings
class Own(Dataset):
    usual_partition: ClassVar[str] = "natural"

    path: str = ""
    """Of the file or the folder."""
    label: str = "y"
    """The column of classes in tables."""
    split: str = ""
    """The column of tables that says train, test or validation, if there is one."""
    features: list[str] = field(default_factory=list)
    """Columns of numbers in tables; all others unless given."""
    test: Share = 0.25
    """Share of each client's examples to test on, where the data do not say which."""
    validation: Share = 0.0
    """Likewise for choosing between models."""
    seed: Size = 0
    """Of the draw of those shares; apart from run.seed, so that all runs have the same test examples."""
    regression: bool = False
    """The labels are numbers to be predicted as such, of about unit variance; not classes."""
    tokens: bool = False
    """The inputs are whole numbers that name something, for a model with an embedding; not amounts."""

    def said(self) -> dict[str, Any]:
        """As `Federation.from_table` and `from_folder` take it."""
        if not self.path:
            raise UserError(f"data.path: say where the {type(self).__name__.lower()} is")
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
