"""Schedules of learning rates: the factor of each local step of a round.

A recipe writes a schedule as text, or as a list of factors. K is the number of steps of the round, k = 0, .., K-1 the
step, and t = 0, 1, ... the step counted on through all rounds.

    none                 1
    exponential B        B^k
    linear B             max(1 - k (1 - B), 0)
    cosine B             B + (1 - B) (1 + cos(pi k / K)) / 2, which falls towards B
    polynomial P         (1 - k / K)^P
    step B every N       B^floor(k / N)
    inverse D            1 / (1 + D t)
    [1.0, 0.5, ...]      the factors themselves; the last one is repeated
"""

import math
from collections.abc import Callable, Sequence
from typing import Annotated, NamedTuple

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError
from torch import Tensor, cos

from coterie.errors import UserError
from coterie.settings import LARGEST_RATE

Number = float | Tensor


class Place(NamedTuple):
    """A local step within a run."""

    k: int
    """Number of the step in the round: 0, 1, ..."""
    K: int | Tensor
    """Number of steps of the round, as a tensor of the rates' type if clients differ."""
    round: int = 1
    """Number of the round: 1, 2, ..."""


Schedule = Callable[[Place], Number]
"""A function from a step to the factor of its rate."""
TAKE_BETA = ("exponential", "linear", "cosine")
"""Schemes whose number is B, so that a method with a field `beta` can supply it."""


def schedule(given: str | Sequence[float], beta: float | None = None) -> Schedule:
    """Return the schedule that is written as text, or as a list of factors.

    Args:
        given: the text or the list.
        beta: B of a scheme that is written without its number. By default, the number is required.
    """
    if not isinstance(given, str):
        if not given or not all(0 <= each <= LARGEST_RATE for each in given):
            raise UserError(f"{given!r} {_EXPECTED}")
        return lambda at: float(given[min(at.k, len(given) - 1)])
    if beta is not None and given in TAKE_BETA:
        given = f"{given} {beta}"
    try:
        scheme, *numbers = given.split()
        return _SCHEMES[scheme](*numbers)
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{given!r} {_EXPECTED}") from None


def _exponential(base: str) -> Schedule:
    beta = _share(base)
    return lambda at: beta**at.k


def _linear(base: str) -> Schedule:
    beta = _share(base)
    return lambda at: max(1 - at.k * (1 - beta), 0.0)


def _cosine(end: str) -> Schedule:
    low = _share(end)
    return lambda at: low + (1 - low) * (1 + _cos(math.pi * at.k / at.K)) / 2


def _polynomial(power: str) -> Schedule:
    degree = _positive(power)
    return lambda at: _rectified(1 - at.k / at.K) ** degree


def _step(base: str, every: str, number: str) -> Schedule:
    beta, length = _share(base), int(number)
    if every != "every" or length < 1:
        raise ValueError
    return lambda at: beta ** (at.k // length)


def _inverse(slope: str) -> Schedule:
    d = _positive(slope)
    return lambda at: 1 / (1 + d * ((at.round - 1) * at.K + at.k))


def _rectified(left: Number) -> Number:
    """Return 0 in the steps of other clients that are computed together with this one, where it would be negative."""
    return left.clamp(min=0) if isinstance(left, Tensor) else max(left, 0.0)


def _cos(angle: Number) -> Number:
    return cos(angle) if isinstance(angle, Tensor) else math.cos(angle)


def _share(text: str) -> float:
    if not 0 <= (value := float(text)) <= 1:
        raise ValueError
    return value


def _positive(text: str) -> float:
    if not 0 < (value := float(text)) < math.inf:
        raise ValueError
    return value


_EXPECTED = (
    'is not a schedule; examples are "none", "exponential 0.6", "linear 0.6", "cosine 0.1", "polynomial 2", '
    '"step 0.5 every 10", "inverse 0.01" and a list of factors that are not negative'
)
_SCHEMES: dict[str, Callable[..., Schedule]] = {
    "none": lambda: lambda _: 1.0,
    "exponential": _exponential,
    "linear": _linear,
    "cosine": _cosine,
    "polynomial": _polynomial,
    "step": _step,
    "inverse": _inverse,
}


def _complete(given: str | list[float]) -> str | list[float]:
    return _checked(given, None)


def _with_beta(given: str | list[float]) -> str | list[float]:
    return _checked(given, 1.0)


def _checked(given: str | list[float], beta: float | None) -> str | list[float]:
    try:
        schedule(given, beta)
    except UserError:
        raise PydanticCustomError("schedule", _EXPECTED) from None
    return given


Decay = Annotated[
    str | list[float],
    AfterValidator(_complete),
    Field(description='Schedule of the local rate within a round, such as "cosine 0.1"; "none" keeps it the same.'),
]
"""A field with a schedule."""
DecayByBeta = Annotated[str | list[float], AfterValidator(_with_beta)]
"""A field with a schedule, in a method whose field `beta` supplies B if the text has no number."""
