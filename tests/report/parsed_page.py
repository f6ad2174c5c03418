"""A page, read as a browser reads it."""

import json
from html.parser import HTMLParser
from typing import Any


class Parsed(HTMLParser):
    """What a browser makes of the page: tags, visible text, table rows, embedded figures."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.rows: list[list[str]] = []
        self.cards: list[str] = []
        self.figures: dict[str, dict[str, Any]] = {}
        self._inside: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag != "meta":
            self._inside.append(self.tags[-1])
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if ("class", "card") in attrs:
            self.cards.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._inside.pop()[0] == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        tag, attributes = self._inside[-1] if self._inside else ("", {})
        if attributes.get("type") == "application/json":
            self.figures[str(attributes["id"]).removesuffix("-figure")] = json.loads(data)
        if tag in ("script", "style"):
            return
        self.text += data
        if any(name in ("td", "th") for name, _ in self._inside):
            self.rows[-1][-1] += data
        if any(attributes.get("class") == "card" for _, attributes in self._inside):
            self.cards[-1] += data

    def row(self, name: str) -> dict[str, str]:
        heading: list[str] = []
        for row in self.rows:
            if row[0] == name:
                return dict(zip(heading[1:], row[1:], strict=True))
            if row[0] in ("clients", ""):
                heading = row
        raise AssertionError(f"no row {name!r}")

    def trace(self, figure: str, name: str) -> dict[str, Any]:
        return next(trace for trace in self.figures[figure]["data"] if trace.get("name") == name)
