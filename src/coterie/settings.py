"""How anything that a recipe can name is declared."""

from typing import Annotated, TypeVar, dataclass_transform

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

T = TypeVar("T")

Count = Annotated[int, Field(ge=1)]
Size = Annotated[int, Field(ge=0)]
Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, lt=1)]

_CONFIG = ConfigDict(strict=True, extra="forbid", use_attribute_docstrings=True)


@dataclass_transform(frozen_default=True)
def settings(cls: type[T]) -> type[T]:
    """Decorator: a frozen dataclass whose fields are checked when it is made."""
    return dataclass(frozen=True, config=_CONFIG)(cls)  # type: ignore[return-value]
