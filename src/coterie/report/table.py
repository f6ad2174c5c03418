"""What a run says in the terminal when it is done."""

from rich.box import SIMPLE_HEAD
from rich.table import Table

from coterie.report.protocols import ALL, Record, statistics
from coterie.report.sections import emphasis_sentence
from coterie.report.units import count, duration, percent, percent_with_error, scaled


def closing_table(summary: Record) -> Table:
    """The score over clients in percent, a row for each protocol."""
    columns = {key: heading for key, heading in statistics(summary).items() if key not in ("mean", "stderr")}
    table = Table(
        title=f"{summary.get('score', 'accuracy')} over clients, %",
        title_justify="left",
        title_style="dim",
        caption=emphasis_sentence(summary) or None,
        caption_justify="left",
        caption_style="dim",
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),  # narrow enough for 80 columns
    )
    table.add_column("clients", no_wrap=True)
    table.add_column("mean ± stderr", justify="right", style="bold", no_wrap=True)
    for heading in columns.values():
        table.add_column(heading.removeprefix("bottom "), justify="right")
    for protocol in ALL:
        figures = protocol.of(summary)
        mean = percent_with_error(figures.get("mean"), figures.get("stderr"))
        table.add_row(protocol.label, mean, *(percent(figures.get(key)) for key in columns))
    return table


def cost_line(summary: Record) -> str:
    """What the training cost all clients together."""
    cost = summary.get("cost") or {}
    return (
        f"{count(summary.get('rounds'))} rounds: "
        f"{scaled(cost.get('bytes_down'), 'B')} down, {scaled(cost.get('bytes_up'), 'B')} up, "
        f"{scaled(cost.get('flops'), 'FLOP')}, {count(cost.get('body_forwards'))} forward and "
        f"{count(cost.get('body_backwards'))} backward passes of the body, {duration(cost.get('seconds'))}"
    )
