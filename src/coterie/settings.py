"""How anything that a recipe can name is declared."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from functools import wraps
from typing import Annotated, Any, TypeVar, dataclass_transform

import numpy as np
from pydantic import AfterValidator, ConfigDict, Field, ValidationError
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
Rate = Annotated[float, Field(ge=0, le=1e38, allow_inf_nan=False)]
"""What float32 can hold: PyTorch multiplies by nothing larger."""
Share = Annotated[float, Field(ge=0, lt=1)]
Gigabytes = Annotated[float, Field(gt=0, allow_inf_nan=False)]

_CONFIG = ConfigDict(strict=True, extra="forbid", use_attribute_docstrings=True)


@dataclass_transform(frozen_default=True)
def settings(cls: type[T]) -> type[T]:
    """Decorator: a frozen dataclass whose fields are checked when it is made. UserError says what is wrong with one."""
    made: Any = dataclass(frozen=True, config=_CONFIG)(cls)
    names, check = [field.name for field in dataclasses.fields(made) if not field.kw_only], made.__init__

    @wraps(check)
    def init(self: Any, *given: Any, **named: Any) -> None:
        options = dict(zip(names, given, strict=False)) | named
        if len(options) < len(given) + len(named):
            raise TypeError(f"{cls.__name__} got too many values, or one twice; it takes: {', '.join(names)}")
        try:
            check(self, **_plain(options))
        except ValidationError as error:
            raise UserError(_complaint(error, options)) from None

    made.__init__ = init
    return made  # type: ignore[no-any-return]


def _plain(value: Any) -> Any:
    """With Python's own numbers in the place of NumPy's, which are no numbers where types are checked strictly."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return value


def _complaint(error: ValidationError, options: Mapping[str, Any]) -> str:
    """The first one, with the keys that lead to the value."""
    first = error.errors()[0]
    if not first["loc"]:  # what a class of its own says of all its fields together
        return str(first["ctx"]["error"])
    message = first["msg"].lower()
    if not (place := _place(first["loc"], options)):
        return f"{first['loc'][0]}: {message}"
    return f"{'.'.join(place)} = {first['input']!r}: {message}"


def _place(loc: Sequence[str | int], options: Any) -> list[str]:
    """The keys on the way to a value; pydantic also names the types that it tried."""
    found = []
    for part in loc:
        inside = range(len(options)) if isinstance(options, list) else options if isinstance(options, dict) else ()
        if part in inside:
            found.append(str(part))
            options = options[part]
    return found
