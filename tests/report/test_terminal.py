from dataclasses import replace

import pytest
from rich.console import Console
from rich.table import Table

from coterie.measure.cost import Cost
from coterie.measure.protocols import Existing, Figures, New, Statistics
from coterie.measure.summary import ALL, OWN, Summary
from coterie.report.terminal import closing_table, cost_line, explanations, remarks
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
    cost=Cost(31_200_000, 2_500, 1_343_076_000, 12_000, 600, 11.82, 75.2),
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


def printed(summary: Summary, width: int) -> str:
    console = Console(width=width)
    with console.capture() as capture:
        console.print(closing_table(summary, width))
    return capture.get()


def test_every_protocol_has_its_row_and_every_figure_its_column() -> None:
    rows = cells(closing_table(SUMMARY))
    assert list(rows) == ["existing, as is", "existing, adapted", "participants", "new, before", "new, after"]
    assert rows["new, before"] == {
        "n": DASH,
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
    text = printed(restricted("new", "after", 0.987), 80)
    for figure in ("89.00 ± 1.23", "98.70", "79.00", "88.80"):
        assert figure in text
    assert "Omitted in this narrow terminal: weighted." in text


@pytest.mark.parametrize(("width", "columns"), [(46, 1), (60, 2), (72, 2), (80, 3), (120, 4)])
def test_a_column_is_there_with_all_of_its_figures_or_not_at_all(width: int, columns: int) -> None:
    full = Statistics(1.0, 1.0, 0.05, 0.0123, 1.0, 0.9, 1.0, clients=12_345)
    text = printed(replace(SUMMARY, existing=Existing(full, full, full), new=New(full, full)), width)
    assert "…" not in text
    assert text.count("100.00 ± 1.23") == text.count("90.00") == 5
    assert text.count("100.00") == 5 * columns
    assert all(len(line) <= width for line in text.splitlines())


def test_parts_of_the_clients_have_rows_below_those_of_all() -> None:
    def of(mean: float, clients: int) -> Statistics:
        return Statistics(mean, mean, 0.1, 0.01, mean, mean, mean, clients=clients)

    several = Figures(Existing(of(0.6, 79), of(0.9, 79)), New())
    summary = replace(
        SUMMARY,
        existing=Existing(of(0.627, 80), of(0.93, 80), of(0.95, 5)),
        new=New(replace(of(0.67, 1), stderr=None), of(0.89, 1)),
        visited=Existing(of(0.834, 54), of(0.94, 54)),
        never_visited=Existing(of(0.197, 26), of(0.91, 26)),
        one_class=("anna",),
        several_classes=several,
    )
    table = closing_table(summary, 120)
    titles = [str(cell) for cell in table.columns[0].cells]
    assert titles[:4] == ["existing, as is", "  visited", "  never visited", "  several classes"]
    rows = list(zip(*(column.cells for column in list(table.columns)[:3]), strict=True))
    assert rows[1:3] == [("  visited", "54", "83.40 ± 1.00"), ("  never visited", "26", "19.70 ± 1.00")]
    assert ("new, before", "1", "67.00 (one client)") in rows
    assert "never visited: " in explanations(summary)
    assert "never visited" not in explanations(SUMMARY)
    assert remarks(summary).splitlines() == [
        "26 of 80 clients were never visited.",
        "1 of 81 clients has only one class (anna), and among its own classes such a client is always right.",
    ]
    assert remarks(replace(summary, rounds=40, void_rounds=37)).startswith("37 of 40 rounds had no clients.\n")


def test_the_title_says_what_a_client_chooses_among() -> None:
    assert str(closing_table(replace(SUMMARY, choices=OWN)).title).endswith(" A client chooses among its own classes.")
    summary = replace(restricted("new", "after", 0.987), choices=ALL)
    assert str(closing_table(summary).title).endswith("among all classes; restricted: among its own classes only.")


@pytest.mark.parametrize(("evaluations", "heading"), [(None, "last ten"), (4, "last 4"), (1, None)])
def test_the_last_column_says_how_many_evaluations_it_averages(evaluations: int | None, heading: str | None) -> None:
    columns = cells(closing_table(replace(SUMMARY, evaluations=evaluations), 120))["new, after"]
    assert [name for name in columns if name.startswith("last")] == ([heading] if heading else [])


def test_cost_line_is_one_line_in_human_units() -> None:
    line = cost_line(SUMMARY)
    assert "\n" not in line
    for part in (
        "60 rounds",
        "31.2 MB down",
        "2.5 kB up",
        "1.34 GFLOP",
        "12,000 forward",
        "600 backward",
        "11.8 s of training",
        "1 min 15 s",
    ):
        assert part in line
