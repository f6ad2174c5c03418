from copy import deepcopy
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from coterie.report.table import closing_table, cost_line
from coterie.report.units import DASH


def statistics(mean: float | None) -> dict[str, Any]:
    if mean is None:
        return dict.fromkeys(
            ("mean", "weighted_mean", "std", "stderr", "bottom_decile", "restricted_mean", "last10_mean")
        )
    return {
        "mean": mean,
        "weighted_mean": mean + 0.001,
        "std": 0.05,
        "stderr": 0.0123,
        "bottom_decile": mean - 0.1,
        "restricted_mean": mean,
        "last10_mean": mean - 0.002,
    }


SUMMARY = {
    "rounds": 60,
    "existing": {"as_is": statistics(0.91), "adapted": statistics(0.93), "participants": statistics(0.95)},
    "new": {"before": statistics(0.55), "after": statistics(0.89)},
    "cost": {
        "bytes_down": 31_200_000,
        "bytes_up": 2_500,
        "flops": 1_343_076_000,
        "body_forwards": 12_000,
        "body_backwards": 600,
        "seconds": 11.82,
    },
}


def cells(table: Table) -> dict[str, dict[str, str]]:
    headings = [str(column.header) for column in table.columns]
    rows = zip(*(column.cells for column in table.columns), strict=True)
    return {str(row[0]): dict(zip(headings[1:], map(str, row[1:]), strict=True)) for row in rows}


def test_every_protocol_has_its_row_and_every_figure_its_column() -> None:
    rows = cells(closing_table(SUMMARY))
    assert list(rows) == ["existing, as is", "existing, adapted", "participants", "new, before", "new, after"]
    assert rows["new, before"] == {
        "mean ± stderr": "55.00 ± 1.23",
        "weighted": "55.10",
        "std": "5.00",
        "decile": "45.00",
        "last ten": "54.80",
    }
    assert rows["existing, adapted"]["mean ± stderr"] == "93.00 ± 1.23"


@pytest.mark.parametrize(("group", "protocol"), [("existing", "as_is"), ("existing", "participants"), ("new", "after")])
def test_restricted_column_only_when_it_differs_somewhere(group: str, protocol: str) -> None:
    assert "restricted" not in cells(closing_table(SUMMARY))["new, after"]
    summary: dict[str, Any] = deepcopy(SUMMARY)
    summary[group][protocol]["restricted_mean"] = 0.987
    shown = [row["restricted"] for row in cells(closing_table(summary)).values()]
    assert shown.count("98.70") == 1


def test_rounding_noise_is_no_difference() -> None:
    summary: dict[str, Any] = deepcopy(SUMMARY)
    summary["new"]["after"]["restricted_mean"] += 1e-15
    assert "restricted" not in cells(closing_table(summary))["new, after"]


def test_without_new_users_their_rows_are_dashes() -> None:
    rows = cells(closing_table({**SUMMARY, "new": {"before": statistics(None), "after": statistics(None)}}))
    assert set(rows["new, before"].values()) == set(rows["new, after"].values()) == {DASH}
    assert rows["existing, as is"]["mean ± stderr"] == "91.00 ± 1.23"


def test_fits_a_terminal_of_eighty_columns() -> None:
    summary: dict[str, Any] = deepcopy(SUMMARY)
    summary["new"]["after"]["restricted_mean"] = 0.987
    console = Console(width=80)
    with console.capture() as capture:
        console.print(closing_table(summary))
    text = capture.get()
    for figure in ("89.00 ± 1.23", "89.10", "98.70", "79.00", "88.80"):
        assert figure in text


def test_cost_line_is_one_line_in_human_units() -> None:
    line = cost_line(SUMMARY)
    assert "\n" not in line
    for part in ("60 rounds", "31.2 MB down", "2.5 kB up", "1.34 GFLOP", "12,000 forward", "600 backward", "11.8 s"):
        assert part in line


def test_cost_line_of_a_summary_without_cost() -> None:
    assert DASH in cost_line({"rounds": 0})
