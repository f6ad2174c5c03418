"""The page of a data set and its clients. It shows counts and none of the examples themselves."""

from html import escape
from typing import Any

from coterie.report.data_charts import EXISTING, NEW, bars, heat_map, spread_chart
from coterie.report.document import chart, document, note, parted, recipe_section, section, table
from coterie.report.looks import ORANGE
from coterie.report.units import count
from coterie.report.words import people

Nested = dict[str, Any]
"""Nested tables: a recipe, or counts of `coterie.report.census`."""


def data_page(recipe: Nested, data: Nested, clients: Nested | None, problem: str = "") -> str:
    """Return the page as HTML, from counts of `coterie.report.census`.

    If `clients` is None, `problem` says why the examples could not be distributed to clients.
    """
    name, partition = str(recipe["data"]["name"]), str(recipe["partition"]["name"])
    parts = [f"partition <strong>{escape(partition)}</strong>"]
    body = [section("Examples", _facts(data["facts"])), _totals(data)]
    if clients is None:
        body.append(section("Clients", note(f"The examples could not be distributed to clients: {escape(problem)}")))
    else:
        parts.append(people(clients["existing"], clients["new"]))
        body += [
            section("Clients", _ranges(clients["ranges"])),
            _held(data["asked"], clients),
            *_histograms(data, clients),
        ]
    body.append(recipe_section("data, partition and seed: with these settings you get the same clients again", recipe))
    return document(name, parted([*parts, f"seed {recipe['run']['seed']}"]), "\n".join(body))


def _facts(facts: Nested) -> str:
    cells = [fact if isinstance(fact, str) else count(fact) for fact in facts.values()]
    return table(["", *facts], [["examples", *map(escape, cells)]])


def _ranges(ranges: Nested) -> str:
    rows = [[name, *(f"{value:,.10g}" for value in values)] for name, values in ranges.items()]
    return table(["per client", "min", "median", "max"], rows)


def _totals(data: Nested) -> str:
    asked, totals = data["asked"], data["totals"]
    series = {"train": (totals["train"], EXISTING), "test": (totals["test"], ORANGE)}
    together = f" Each bar stands for {totals['step']:,} {asked['many']}." if totals["step"] > 1 else ""
    return chart(
        "totals",
        asked["many"].capitalize(),
        f"{asked['many'].capitalize()} in the train set and in the test set.",
        f"The whole data set, before it is distributed to clients.{together}",
        bars(totals["names"], asked["one"], asked["counted"].removeprefix("training "), series, stacked=False),
    )


def _held(asked: Nested, clients: Nested) -> str:
    if "spread" in clients:
        held, drawn = clients["spread"], spread_chart(clients["spread"])
        title = "Targets of each client"
        how = "Dots show the mean target of a client, lines the range from its first to its last decile."
    else:
        held, drawn = clients["map"], heat_map(clients["map"], asked["one"], asked["counted"])
        title = f"{asked['many'].capitalize()} of each client"
        how = f"Each row is a client. The shade shows its number of {asked['counted']}."
    below = ", below the dotted line" if clients["new"] else ""
    caption = f"{how} Shown: {escape(held['caption'])}{below}."
    return chart("held", title, caption, caption, drawn, tall=True)


def _histograms(data: Nested, clients: Nested) -> list[str]:
    many = data["asked"]["many"]
    shown = [("sizes", "Sizes", "training examples", "Number of clients by their number of training examples.")]
    if "variety" in clients:
        shown.append(("variety", f"Number of {many}", many, f"Number of clients by their number of {many}."))
    return [_by_role(key, title, what, caption, clients[key]) for key, title, what, caption in shown]


def _by_role(key: str, title: str, what: str, caption: str, bins: Nested) -> str:
    series = {"existing": (bins["existing"], EXISTING), "new users": (bins["new"], NEW)}
    return chart(key, title, caption, caption, bars(bins["names"], what, "clients", series, stacked=True))
