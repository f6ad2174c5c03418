"""Output of a finished run in the terminal."""

from rich.box import SIMPLE_HEAD
from rich.table import Table

from coterie.measure.summary import Summary
from coterie.report.columns import Line, row_explanations, shown_lines, shown_statistics, title
from coterie.report.sections import emphasis_sentence
from coterie.report.units import count, duration, known, percent, percent_with_error, scaled

FIRST_TO_GO = ("weighted", "last", "std", "decile", "n")
"""Columns to omit in a narrow terminal, by the beginning of their headings. All figures are in summary.json."""


def closing_table(summary: Summary, width: int = 80) -> Table:
    """Return a table of the score over clients in percent, with a row for each protocol.

    Columns that do not fit into `width` are omitted, because a figure that is cut off is worse than none.
    """
    columns = {key: heading for key, heading in shown_statistics(summary).items() if key not in ("mean", "stderr")}
    cells: dict[str, list[str]] = {"clients": [], "n": [], "mean ± stderr": []}
    cells |= {heading.removeprefix("bottom "): [] for heading in columns.values()}
    for line in shown_lines(summary):
        for column, cell in zip(cells.values(), _cells(line, list(columns)), strict=True):
            column.append(cell)
    omitted = []
    for beginning in FIRST_TO_GO:
        if sum(max(map(len, [heading, *column])) + 2 for heading, column in cells.items()) - 2 <= width:
            break
        omitted += [heading for heading in cells if heading.startswith(beginning)]
        cells = {heading: column for heading, column in cells.items() if heading not in omitted}
    table = Table(
        title=title(summary),
        title_justify="left",
        title_style="dim",
        caption=_caption(summary, omitted),
        caption_justify="left",
        caption_style="dim",
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),  # narrow enough for 80 columns
    )
    for heading in cells:
        style = "bold" if heading.startswith("mean") else ""
        table.add_column(heading, justify="left" if heading == "clients" else "right", style=style, no_wrap=True)
    for row in zip(*cells.values(), strict=True):
        table.add_row(*row)
    return table


def explanations(summary: Summary) -> str:
    """Return what the rows of the closing table mean, one line each."""
    return "\n".join(f"{name}: {explanation}" for name, explanation in row_explanations(summary).items())


def remarks(summary: Summary) -> str:
    """Return what readers of the table must know, one line each."""
    return "\n".join(f"{remark}." for remark in summary.remarks())


def cost_line(summary: Summary) -> str:
    """Return one line with the cost of training, summed over clients, and the time of evaluation."""
    cost = summary.cost
    end = f", and {duration(cost.eval_seconds)} of evaluation" if cost.eval_seconds else ""
    if known(summary.stored_bytes) is not None:
        end += f"; each client stores {scaled(summary.stored_bytes, 'B')}"
    return (
        f"{count(summary.rounds)} rounds: {scaled(cost.bytes_down, 'B')} down, {scaled(cost.bytes_up, 'B')} up, "
        f"{scaled(cost.flops, 'FLOP')}, {count(cost.body_forwards)} forward and "
        f"{count(cost.body_backwards)} backward passes of the body, {duration(cost.seconds)} of training{end}"
    )


def _cells(line: Line, columns: list[str]) -> list[str]:
    found = line.statistics
    return [
        f"  {line.part}" if line.part else line.title,
        count(found.clients),
        percent_with_error(found.mean, found.stderr, found.clients),
        *(percent(getattr(found, name)) for name in columns),
    ]


def _caption(summary: Summary, omitted: list[str]) -> str | None:
    narrow = f"Omitted in this narrow terminal: {', '.join(omitted)}." if omitted else ""
    return " ".join(filter(None, (narrow, emphasis_sentence(summary)))) or None
