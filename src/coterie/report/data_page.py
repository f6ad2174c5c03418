"""The page of a data set and of its clients: counts, and nothing of the examples themselves."""

from html import escape
from typing import Any

from coterie.report.data_charts import EXISTING, NEW, bars, heat_map, spread_chart
from coterie.report.document import chart, document, note, parted, recipe_section, section, table
from coterie.report.looks import ORANGE
from coterie.report.units import count
from coterie.report.words import people

Nested = dict[str, Any]
"""Nested tables: a recipe, or what `coterie.report.census` counted."""


def data_page(recipe: Nested, data: Nested, clients: Nested | None, problem: str = "") -> str:
    """From the records of `coterie.report.census`; without clients, `problem` says why they could not be dealt to."""
    name, partition = str(recipe["data"]["name"]), str(recipe["partition"]["name"])
    parts = [f"dealt by <strong>{escape(partition)}</strong>"]
    body = [section("Examples", _facts(data["facts"])), _totals(data)]
    if clients is None:
        body.append(section("Clients", note(f"Not dealt to clients: {escape(problem)}")))
    else:
        parts.append(people(clients["existing"], clients["new"]))
        body += [
            section("Clients", _ranges(clients["ranges"])),
            _held(data["asked"], clients),
            *_histograms(data, clients),
        ]
    body.append(recipe_section("how to have the same clients again: data, partition and seed", recipe))
    return document(name, parted([*parts, f"seed {recipe['run']['seed']}"]), "\n".join(body))


def _facts(facts: Nested) -> str:
    cells = [fact if isinstance(fact, str) else count(fact) for fact in facts.values()]
    return table(["", *facts], [["examples", *map(escape, cells)]])


def _ranges(ranges: Nested) -> str:
    rows = [[name, *(f"{value:,.10g}" for value in values)] for name, values in ranges.items()]
    return table(["of a client", "min", "median", "max"], rows)


def _totals(data: Nested) -> str:
    asked, totals = data["asked"], data["totals"]
    series = {"train": (totals["train"], EXISTING), "test": (totals["test"], ORANGE)}
    together = f" {totals['step']:,} {asked['many']} to a bar." if totals["step"] > 1 else ""
    return chart(
        "totals",
        asked["many"].capitalize(),
        f"{asked['many'].capitalize()} of the train and of the test set.",
        f"Of the whole data set, before anything is dealt.{together}",
        bars(totals["names"], asked["one"], asked["counted"].removeprefix("training "), series, stacked=False),
    )


def _held(asked: Nested, clients: Nested) -> str:
    if "spread" in clients:
        held, drawn = clients["spread"], spread_chart(clients["spread"])
        title = "Targets of each client"
        how = "Dot: mean; line: from the first to the last decile."
    else:
        held, drawn = clients["map"], heat_map(clients["map"], asked["one"], asked["counted"])
        title = f"{asked['many'].capitalize()} of each client"
        how = f"Each row is a client, the shade its number of {asked['counted']}."
    below = ", below the dotted line" if clients["new"] else ""
    caption = f"{how} Drawn: {escape(held['caption'])}{below}."
    return chart("held", title, caption, caption, drawn, tall=True)


def _histograms(data: Nested, clients: Nested) -> list[str]:
    many = data["asked"]["many"]
    shown = [("sizes", "Sizes", "training examples", "How many clients have how many training examples.")]
    if "variety" in clients:
        shown.append(("variety", f"Number of {many}", many, f"How many clients have how many {many}."))
    return [_by_role(key, title, what, caption, clients[key]) for key, title, what, caption in shown]


def _by_role(key: str, title: str, what: str, caption: str, bins: Nested) -> str:
    series = {"existing": (bins["existing"], EXISTING), "new users": (bins["new"], NEW)}
    return chart(key, title, caption, caption, bars(bins["names"], what, "clients", series, stacked=True))
