"""A rule that ends a run once a figure of its evaluations no longer improves. It depends on the history only."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from coterie.measure.protocols import CHOOSES, Existing, Figures, New
from coterie.measure.record import Evaluated, Record
from coterie.measure.stopping import Chosen
from coterie.settings import Size, settings


@settings
class StopSettings:
    """The section [stop] of a recipe."""

    patience: Size = 0
    """Number of evaluations in a row that may fail to improve before the run stops; 0 plays all rounds. Evaluations
    every `run.eval_every` rounds count."""
    by: Literal["as_is", "adapted", "new_before", "new_after", "train_loss"] = "as_is"
    """Figure that has to improve: the mean score of a protocol on validation examples, or the training loss."""
    improvement: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Smallest improvement that counts: 0.01 is one percentage point of accuracy."""

    @property
    def validates(self) -> str | None:
        """Group of clients whose validation examples the rule needs: "existing", "new", or None if it needs none."""
        return CHOOSES[self.by].group if self.patience and self.by != "train_loss" else None


@dataclass(frozen=True)
class StoppingRule:
    """Patience: stop when a figure has not improved for a number of evaluations."""

    settings: StopSettings
    eval_every: int
    """Number of rounds between the evaluations that count. Extra evaluations at the end of a run do not count, so that
    a run decides in the same way however many rounds it has."""

    def is_met(self, history: Sequence[Record]) -> bool:
        """Return whether the run ends with the last round of the history."""
        if not (self.settings.patience and history and self._counts(history[-1])):
            return False
        return self._search(history)[2] >= self.settings.patience

    def chosen(self, history: Sequence[Record]) -> Chosen | None:
        """Return the round of the last improvement, or None if there is no rule."""
        if not self.settings.patience:
            return None
        best, value, _ = self._search(history)
        figures = best.eval if best and best.eval else Figures(Existing(), New())
        return Chosen(
            figures.existing,
            figures.new,
            by=self.settings.by,
            patience=self.settings.patience,
            improvement=self.settings.improvement,
            stopped=self.is_met(history),
            round=best.round if best else None,
            value=value,
        )

    def _search(self, history: Sequence[Record]) -> tuple[Record | None, float | None, int]:
        """Return the record of the last improvement, its figure, and the number of evaluations since then."""
        best, highest, since = None, None, 0
        sign = -1 if self.settings.by == "train_loss" else 1
        for record in history:
            if record.eval is None or not self._counts(record):
                continue
            value = self._figure(record.eval)
            if value is not None and (highest is None or sign * (value - highest) > self.settings.improvement):
                best, highest, since = record, value, 0
            else:
                since += 1
        return best, highest, since

    def _counts(self, record: Record) -> bool:
        return record.round % self.eval_every == 0

    def _figure(self, evaluated: Evaluated) -> float | None:
        if self.settings.by == "train_loss":
            return evaluated.train_loss
        assert evaluated.validation is not None, "it is checked first that there are validation examples"
        return evaluated.validation[CHOOSES[self.settings.by].key].mean
