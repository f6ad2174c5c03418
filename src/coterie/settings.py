"""How anything that a recipe can name is declared."""

import re
from typing import Annotated, TypeVar, dataclass_transform

from pydantic import AfterValidator, ConfigDict, Field
from pydantic.dataclasses import dataclass
from pydantic_core import PydanticCustomError

from coterie.errors import UserError

T = TypeVar("T")


class Epochs(int):
    """So many passes over the client's own examples, where a plain number counts local steps.

    As a number it is that of steps with all examples at once: each of these is such a pass.
    """


def length(given: int | str) -> int:
    """Of local work: 5 is steps, "2 epochs" are Epochs."""
    if isinstance(given, int) and given >= 0:
        return given
    if not (found := re.fullmatch(r"([1-9]\d*) epochs?", str(given))):
        raise UserError(f'{given!r} must be a number of steps, or like "2 epochs"')
    return Epochs(found[1])


def _some(given: int | str) -> int | str:
    try:
        enough = length(given) > 0
    except UserError:
        enough = False
    if not enough:
        raise PydanticCustomError("length", 'must be at least 1 (step), or like "2 epochs"')
    return given


Count = Annotated[int, Field(ge=1)]
Length = Annotated[int | str, AfterValidator(_some)]
Size = Annotated[int, Field(ge=0)]
Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, lt=1)]

_CONFIG = ConfigDict(strict=True, extra="forbid", use_attribute_docstrings=True)


@dataclass_transform(frozen_default=True)
def settings(cls: type[T]) -> type[T]:
    """Decorator: a frozen dataclass whose fields are checked when it is made."""
    return dataclass(frozen=True, config=_CONFIG)(cls)  # type: ignore[return-value]
