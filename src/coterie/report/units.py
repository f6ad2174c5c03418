"""Numbers as text for people to read."""

import math
from typing import Any

DASH = "–"  # noqa: RUF001
"""Text for a missing figure."""

PREFIXES = ("", "k", "M", "G", "T", "P", "E")
"""Decimal prefixes of units."""


def known(value: Any) -> float | None:
    """Return the value as a finite number, or None. The value may be text, as in a CSV file."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def percent(share: Any, digits: int = 2) -> str:
    """Return a share in percent without the percent sign: 0.9768 -> 97.68."""
    number = known(share)
    return DASH if number is None else f"{100 * number:.{digits}f}"


def percent_with_error(mean: Any, stderr: Any, clients: int | None = None, digits: int = 2) -> str:
    """Return a mean and its standard error in percent: 97.68 ± 0.77. A single client has no standard error."""
    if clients == 1:
        return f"{percent(mean, digits)} (one client)"
    if known(mean) is None or known(stderr) is None:
        return percent(mean, digits)
    return f"{percent(mean, digits)} ± {percent(stderr, digits)}"


def scaled(value: Any, unit: str) -> str:
    """Return a quantity with three digits and a decimal prefix: 31200000 B -> 31.2 MB."""
    number = known(value)
    if number is None:
        return DASH
    power = 0
    # 999.5 and above would be rounded to four digits
    while abs(number) >= 999.5 and power < len(PREFIXES) - 1:
        number, power = number / 1000, power + 1
    return f"{_three_digits(number)} {PREFIXES[power]}{unit}"


def count(value: Any) -> str:
    """Return a count, or a mean of counts: 12,000 or 2.5."""
    number = known(value)
    if number is None:
        return DASH
    return f"{number:,.0f}" if number == round(number) or abs(number) >= 100 else _three_digits(number)


def decimal(value: Any) -> str:
    """Return a number with four digits after the point."""
    number = known(value)
    return DASH if number is None else f"{number:.4f}"


def duration(seconds: Any) -> str:
    """Return a duration in fitting units: 150 ms, 11.8 s, 3 min 05 s, 2 h 10 min."""
    number = known(seconds)
    if number is None:
        return DASH
    if number < 0.9995:
        return f"{_three_digits(1000 * number)} ms" if number else "0 s"
    if number < 59.95:
        return f"{_three_digits(number)} s"
    whole = round(number)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(number / 60)
    return f"{minutes // 60:,} h {minutes % 60:02d} min"


def _three_digits(number: float) -> str:
    digits = 2 - math.floor(math.log10(abs(number))) if number else 0
    text = f"{number:.{max(0, min(digits, 6))}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
