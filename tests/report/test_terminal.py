from dataclasses import replace

import pytest
from rich.console import Console
from rich.table import Table

from coterie.measure.cost import Cost
from coterie.measure.protocols import Existing, New, Statistics
from coterie.measure.summary import Summary
from coterie.report.terminal import closing_table, cost_line
from coterie.report.units import DASH


def statistics(mean: float) -> Statistics:
    return Statistics(mean, mean + 0.001, 0.05, 0.0123, mean - 0.1, mean, mean - 0.002)


SUMMARY = Summary(
    method="pflego",
    engine="loop",
    seed=0,
    rounds=60,
    score="accuracy",
    protocol="",
    existing=Existing(statistics(0.91), statistics(0.93), statistics(0.95)),
    new=New(statistics(0.55), statistics(0.89)),
    train_loss=0.1,
    cost=Cost(31_200_000, 2_500, 1_343_076_000, 12_000, 600, 11.82),
)


def restricted(group: str, protocol: str, mean: float) -> Summary:
    """The summary with another restricted mean."""
    statistics = getattr(SUMMARY, group)
    changed = replace(getattr(statistics, protocol), restricted_mean=mean)
    return replace(SUMMARY, **{group: replace(statistics, **{protocol: changed})})


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
    summary = restricted(group, protocol, 0.987)
    shown = [row["restricted"] for row in cells(closing_table(summary)).values()]
    assert shown.count("98.70") == 1


def test_rounding_noise_is_no_difference() -> None:
    summary = restricted("new", "after", 0.89 + 1e-15)
    assert "restricted" not in cells(closing_table(summary))["new, after"]


def test_without_new_users_their_rows_are_dashes() -> None:
    rows = cells(closing_table(replace(SUMMARY, new=New())))
    assert set(rows["new, before"].values()) == set(rows["new, after"].values()) == {DASH}
    assert rows["existing, as is"]["mean ± stderr"] == "91.00 ± 1.23"


def test_fits_a_terminal_of_eighty_columns() -> None:
    summary = restricted("new", "after", 0.987)
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
