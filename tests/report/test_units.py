import pytest

from coterie.report.units import DASH, count, duration, known, percent, percent_with_error, scaled


@pytest.mark.parametrize("nothing", [None, float("nan"), float("inf"), "", "nan"])
def test_a_figure_that_does_not_exist_is_a_dash(nothing: object) -> None:
    assert known(nothing) is None
    assert percent(nothing) == percent_with_error(nothing, 0.1) == count(nothing) == duration(nothing) == DASH
    assert scaled(nothing, "B") == DASH


def test_dash_is_the_en_dash() -> None:
    assert DASH == "\N{EN DASH}"


def test_percent() -> None:
    assert percent(0.97682) == "97.68"
    assert percent(1, 1) == "100.0"
    assert percent("0.5") == "50.00"
    assert percent_with_error(0.97682, 0.0077) == "97.68 ± 0.77"
    assert percent_with_error(0.97682, None) == "97.68"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (999, "999 B"),
        (999.4, "999 B"),
        (999.5, "1 kB"),
        (1000, "1 kB"),
        (52_000, "52 kB"),
        (31_202_400, "31.2 MB"),
        (999_499_999, "999 MB"),
        (999_999_999, "1 GB"),
        (1.343e9, "1.34 GB"),
        (5e21, "5000 EB"),
    ],
)
def test_scaled_keeps_three_digits_and_never_shows_a_thousand_of_a_smaller_unit(value: float, text: str) -> None:
    assert scaled(value, "B") == text


def test_count() -> None:
    assert count(12_000) == "12,000"
    assert count(1) == "1"
    assert count(2.5) == "2.5"
    assert count(0) == "0"
    assert count(1234.5) == "1,234"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.0197, "19.7 ms"),
        (0.9999, "1 s"),
        (11.82, "11.8 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 00 s"),
        (185, "3 min 05 s"),
        (3599.6, "1 h 00 min"),
        (7800, "2 h 10 min"),
        (7199, "2 h 00 min"),
    ],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text
