"""Output of a finished run in the terminal."""

from rich.box import SIMPLE_HEAD
from rich.table import Table

from coterie.measure.protocols import PROTOCOLS
from coterie.measure.summary import Summary
from coterie.report.columns import shown_statistics
from coterie.report.sections import emphasis_sentence
from coterie.report.units import count, duration, percent, percent_with_error, scaled


def closing_table(summary: Summary) -> Table:
    """Return a table of the score over clients in percent, with a row for each protocol."""
    columns = {key: heading for key, heading in shown_statistics(summary).items() if key not in ("mean", "stderr")}
    table = Table(
        title=f"{summary.score[0].upper()}{summary.score[1:]} over clients, in percent",
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
    for protocol in PROTOCOLS:
        found = summary[protocol.key]
        mean = percent_with_error(found.mean, found.stderr)
        table.add_row(protocol.title, mean, *(percent(getattr(found, name)) for name in columns))
    return table


def explanations() -> str:
    """Return what the rows of the closing table mean, one line each."""
    return "\n".join(f"{protocol.title}: {protocol.explanation}" for protocol in PROTOCOLS)


def cost_line(summary: Summary) -> str:
    """Return one line with the cost of training, summed over clients."""
    cost = summary.cost
    return (
        f"{count(summary.rounds)} rounds: {scaled(cost.bytes_down, 'B')} down, {scaled(cost.bytes_up, 'B')} up, "
        f"{scaled(cost.flops, 'FLOP')}, {count(cost.body_forwards)} forward and "
        f"{count(cost.body_backwards)} backward passes of the body, {duration(cost.seconds)}"
    )
