"""Tables for the terminal and for Markdown."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.markup import escape
from rich.table import Table as RichTable


@dataclass(frozen=True)
class Table:
    """A table of text, with a title above and notes below."""

    headings: Sequence[str]
    lines: Sequence[Sequence[str]]
    title: str = ""
    notes: Sequence[str] = ()

    def printed(self) -> Group:
        """Return the table for the terminal."""
        table = RichTable(
            title=self.title,
            title_justify="left",
            title_style="bold",
            box=SIMPLE_HEAD,
            show_edge=False,
            pad_edge=False,
            padding=(0, 1, 0, 0),
        )
        for heading in self.headings:
            if self._is_number(heading):
                table.add_column(heading, justify="right", overflow="fold", min_width=max(map(len, heading.split())))
            else:
                table.add_column(heading, overflow="fold")
        for line in self.lines:
            table.add_row(*line)
        return Group(table, *map(escape, self.notes))

    def markdown(self) -> str:
        """Return the table as Markdown."""
        rule = ["---:" if self._is_number(heading) else "---" for heading in self.headings]
        lines = [f"| {' | '.join(line)} |" for line in (self.headings, rule, *self.lines)]
        return "\n".join([f"**{self.title}**", "", *lines, *(f"\n{note}" for note in self.notes), ""])

    def _is_number(self, heading: str) -> bool:
        place = list(self.headings).index(heading)
        return any(line[place][:1].isdigit() or line[place][:1] in "+-" for line in self.lines if line[place])
