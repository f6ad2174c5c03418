"""Settings: checked, frozen dataclasses for everything that a recipe can name, and paths that users write."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, TypeVar, dataclass_transform

import numpy as np
from pydantic import AfterValidator, ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass
from pydantic_core import PydanticCustomError

from coterie.errors import UserError

T = TypeVar("T")


class Epochs(int):
    """A number of local epochs. A plain int means local steps.

    As an int it is the number of full-batch steps, since each of these is one pass over the examples.
    """


def length(given: int | str) -> int:
    """Parse an amount of local work: 5 means steps, "2 epochs" means Epochs."""
    if isinstance(given, int) and given >= 0:
        return given
    if not (found := re.fullmatch(r"([1-9]\d{0,17}) epochs?", str(given))):
        raise UserError(f'{given!r} must be a number of steps, or epochs such as "2 epochs"')
    return Epochs(found[1])


def user_path(text: str | Path) -> Path:
    """Return a path with ~ replaced by the home folder. Raise a UserError if there can be no such path."""
    if "\0" in str(text):
        raise UserError(f"the path {str(text)!r} contains a zero character; remove it")
    try:
        path = Path(text).expanduser()
        str(path.absolute()).encode()
    except RuntimeError:
        raise UserError(f"the path {str(text)!r} names the home folder of a user who does not exist") from None
    except UnicodeEncodeError:
        raise UserError(
            f"the path {str(path.absolute())!r} has characters that are not valid UTF-8; choose another"
        ) from None
    return path


def _some(given: int | str) -> int | str:
    try:
        enough = length(given) > 0
    except UserError:
        enough = False
    if not enough:
        raise PydanticCustomError("length", 'must be at least 1 step, or epochs such as "2 epochs"')
    return given


Count = Annotated[int, Field(ge=1)]
Length = Annotated[int | str, AfterValidator(_some)]
Size = Annotated[int, Field(ge=0)]
LARGEST_RATE = 1e38
Rate = Annotated[float, Field(ge=0, le=LARGEST_RATE, allow_inf_nan=False)]
"""A non-negative number that float32 can hold: PyTorch cannot multiply by larger ones."""
Share = Annotated[float, Field(ge=0, lt=1)]
Gigabytes = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]

_DEEPEST = 10
"""Maximum number of levels of nested values."""
_CONFIG = ConfigDict(strict=True, extra="forbid", use_attribute_docstrings=True)


@dataclass_transform(frozen_default=True)
def settings(cls: type[T]) -> type[T]:
    """Turn a class into a frozen dataclass that checks its fields when it is created, and raises UserError."""
    made: Any = dataclass(frozen=True, config=_CONFIG)(cls)
    names, check = [field.name for field in dataclasses.fields(made) if not field.kw_only], made.__init__

    @wraps(check)
    def init(self: Any, *given: Any, **named: Any) -> None:
        options = dict(zip(names, given, strict=False)) | named
        if len(options) < len(given) + len(named):
            raise TypeError(f"{cls.__name__} got too many values, or one of them twice; it takes: {', '.join(names)}")
        check_values(options)
        try:
            check(self, **_plain(options))
        except ValidationError as error:
            raise UserError(_complaint(error, options)) from None

    made.__init__ = init
    return made  # type: ignore[no-any-return]


def check_values(values: Mapping[str, Any]) -> None:
    """Raise a UserError if a value cannot be used anywhere: huge integers, zero characters, and deep nesting."""
    waiting: list[tuple[tuple[str, ...], Any]] = [((str(key),), value) for key, value in values.items()]
    while waiting:
        place, value = waiting.pop()
        problem = ""
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            problem = "must be an integer of at most 64 bits"
        elif isinstance(value, str) and "\0" in value:
            problem = "contains a zero character; remove it"
        elif isinstance(value, dict | list) and len(place) > _DEEPEST:
            problem = f"is nested more than {_DEEPEST} levels deep"
        if problem:
            raise UserError(f"{'.'.join(place)[:200]} {problem}")
        inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        waiting += [((*place, str(key)), each) for key, each in inside]


def _plain(value: Any) -> Any:
    """Replace NumPy's numbers by Python's, because strict type checks refuse NumPy's."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return value


def _complaint(error: ValidationError, options: Mapping[str, Any]) -> str:
    """Return the first complaint, with the keys that lead to the value."""
    first = error.errors()[0]
    if not first["loc"]:  # a check of the class itself, about several fields
        return str(first["ctx"]["error"])
    message = first["msg"].lower()
    if not (place := _place(first["loc"], options)):
        return f"{first['loc'][0]}: {message}"
    return f"{'.'.join(place)} = {first['input']!r:.200}: {message}"


def _place(loc: Sequence[str | int], options: Any) -> list[str]:
    """Return the keys on the way to a value. Pydantic also lists the types it tried, which are left out."""
    found = []
    for part in loc:
        inside = range(len(options)) if isinstance(options, list) else options if isinstance(options, dict) else ()
        if part in inside:
            found.append(str(part))
            options = options[part]
    return found
