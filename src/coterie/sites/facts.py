"""What a site says about its data before a run. It comes from another machine, so everything is checked."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from typing import Any, NamedTuple

from coterie.clients.announcement import Inputs
from coterie.clients.sites import Facts
from coterie.clients.wire import shown
from coterie.errors import UserError

_MOST = 10**12
"""Maximum number of examples of a site, of values in one of its inputs, and of different tokens."""


class Known(NamedTuple):
    """What a site has said about itself."""

    facts: Facts
    inputs: Inputs
    targets: Mapping[str, float] | None
    """Mean of the training targets, and sum of squares around it, if numbers are predicted."""

    def to_json(self) -> dict[str, Any]:
        """Return what the site has said as plain values, as `known_from` reads it."""
        inputs = {"shape": list(self.inputs.shape), "tokens": self.inputs.tokens}
        return {**asdict(self.facts), "inputs": inputs, "targets": self.targets}

    def told(self) -> str:
        """Return what the data of the site are, in words."""
        sizes = ", ".join(f"{size:,} {split}" for split, size in self.facts.splits.items())
        labels = "" if self.facts.labels is None else f" with the labels {shown(list(self.facts.labels))}"
        return f"{sizes} examples{labels}{', as a new user' if self.facts.is_new else ''}"


def read_facts(name: str, head: Mapping[str, Any]) -> Known:
    """Return what a site has said about itself. Raises UserError if it cannot be used."""
    try:
        if head["coterie"] != (own := version("coterie")):
            raise ValueError(f"the site has Coterie {head['coterie']}, and the server {own}; install the same version")
        return known_from(head)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise UserError(
            f"{name} has sent facts that cannot be used: {shown(f'{type(error).__name__}: {error}')}"
        ) from None


def known_from(head: Mapping[str, Any]) -> Known:
    """Return what a site has said, from plain values. Raises an error of many kinds if they cannot be used."""
    splits = {str(split): _count(size) for split, size in head["splits"].items()}
    if not {"train", "test"} <= splits.keys() or splits["train"] < 1:
        raise ValueError(f"numbers of examples {splits}")
    shape = tuple(map(_count, head["inputs"]["shape"]))
    if math.prod(shape) > _MOST:
        raise ValueError(f"inputs of shape {shape}")
    inputs = Inputs(shape, _tokens(head["inputs"]["tokens"]))
    labels = _labels(head["labels"])
    targets = _targets(head["targets"]) if labels is None else None
    return Known(Facts(splits, labels, bool(head["is_new"])), inputs, targets)


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _MOST:
        raise ValueError(f"{value!r} is not a number of things")
    return int(value)


def _tokens(told: Any) -> tuple[int, int] | None:
    if told is None:
        return None
    low, high = told
    if type(low) is not int or type(high) is not int or not -_MOST <= low <= high <= _MOST:
        raise ValueError(f"tokens from {low!r} to {high!r}")
    return low, high


def _labels(told: Any) -> tuple[Any, ...] | None:
    if told is None:
        return None
    labels = tuple(told)
    if {type(label) for label in labels} not in ({int}, {str}) or len(set(labels)) < len(labels):
        raise ValueError("labels must be different whole numbers or texts")
    for label in labels:
        str(label).encode()  # half of a surrogate pair cannot be written to a file
    return labels


def _targets(told: Any) -> dict[str, float]:
    targets = {part: float(told[part]) for part in ("mean", "squares")}
    if not all(map(math.isfinite, targets.values())) or targets["squares"] < 0:
        raise ValueError(f"targets with {targets}")
    return targets


def kind_of(inputs: Inputs, labels: Any) -> tuple[Any, ...]:
    """Return what the data of all sites have in common: shape of an input, whether inputs are numbers, and the type of
    the labels."""
    return inputs.shape, inputs.tokens is None, type(labels[0]).__name__ if labels else None


def check_alike(known: Mapping[str, Known]) -> None:
    """Raise UserError if sites have different kinds of data."""
    (first, one), *others = known.items()
    for name, other in others:
        if (theirs := kind_of(other.inputs, other.facts.labels)) != (kind := kind_of(one.inputs, one.facts.labels)):
            raise UserError(
                f"{name} and {first} have different data (shape of an input, whether inputs are numbers, type of the "
                f"labels): {theirs} and {kind}; all sites must have the same kind"
            )
    if all(each.facts.is_new for each in known.values()):
        raise UserError("every site is a new user; start some without --new")
