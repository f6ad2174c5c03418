"""The page of a sweep: the best trial, the score against each setting, every trial's curve and end."""

import json
from collections.abc import Sequence
from html import escape
from typing import Any

from coterie.report.document import chart, document, note, parted, recipe_section, section, table, things
from coterie.report.lab_page import SIDE_BY_SIDE
from coterie.report.protocols import ADAPTED, AFTER, AS_IS, BEFORE, Record
from coterie.report.sweep_charts import curves_chart, slice_chart
from coterie.report.units import percent, percent_with_error

LABELS = {"as_is": AS_IS, "adapted": ADAPTED, "new_before": BEFORE, "new_after": AFTER}
"""What a sweep may choose by."""


def sweep_page(name: str, found: Record, best_recipe: Record | None) -> str:
    """From what is in trials.json, and the recipe of the best trial, if there is one."""
    body = [_cards(found)]
    if found["best"] is not None:
        body.append(_best(found))
    body += [_slices(found), _curves(found), *_lists(found)]
    if best_recipe is not None:
        body.append(recipe_section("best.toml, every key resolved", best_recipe))
    subtitle = [
        f"<strong>{escape(found['method'])}</strong> on <strong>{escape(found['data'])}</strong>",
        f"{escape(found['search'])}, {things(len(found['trials']), 'trial')} of {found['planned']:,}",
        things(found["rounds"], "round"),
        f"seed {found['seed']}",
    ]
    return document(name, parted(subtitle), "\n".join(body))


def shown(value: Any) -> str:
    """A setting as people read it."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value)


def with_result(found: Record) -> list[Record]:
    """The complete trials, best first."""
    complete = [trial for trial in found["trials"] if trial["state"] == "complete"]
    return sorted(complete, key=lambda trial: -trial["validation"])


def without_result(found: Record) -> list[Record]:
    return [trial for trial in found["trials"] if trial["state"] != "complete"]


def keys_of(found: Record) -> list[str]:
    """What was searched."""
    return [f"{section}.{key}" for section, axes in found["space"].items() for key in axes]


def _cards(found: Record) -> str:
    protocol, figures = LABELS[found["protocol"]], found["best_figures"] or {}
    counts = {state: _count(found, state) for state in ("pruned", "diverged", "failed")}
    given_up = ", ".join(f"{number:,} {state}" for state, number in counts.items() if number)
    cards = [
        _card(AS_IS.color, "Best on validation", protocol.label, _mean(figures, "validation", found), "what decides"),
        _card(ADAPTED.color, "Its test score", protocol.label, _mean(figures, "test", found), "of the best trial only"),
        _card(
            AFTER.color, "Complete", "with a result", f"<b>{_count(found, 'complete'):,}</b>", "of these is the best"
        ),
        _card(BEFORE.color, "Not complete", "without a result", f"<b>{sum(counts.values()):,}</b>", given_up or "none"),
    ]
    return f'<div class="cards">{"".join(cards)}</div>'


def _card(color: str, who: str, how: str, value: str, below: str) -> str:
    return (
        f'<div class="card" style="--accent: {color}"><p class="who">{who} <span>{how}</span></p>\n'
        f'<p class="value">{value}</p>\n<p class="below">{below}</p></div>\n'
    )


def _mean(figures: Record, split: str, found: Record) -> str:
    own = LABELS[found["protocol"]].of(figures.get(split) or {})
    error = f" <span>± {percent(own.get('stderr'), 1)} %</span>" if own else ""
    return f"<b>{percent(own.get('mean'), 1)}</b>{error}"


def _count(found: Record, state: str) -> int:
    return sum(trial["state"] == state for trial in found["trials"])


def _best(found: Record) -> str:
    trial = next(each for each in found["trials"] if each["trial"] == found["best"])
    settings = [f"{escape(key)} <strong>{escape(shown(value))}</strong>" for key, value in trial["settings"].items()]
    rows = []
    for protocol in LABELS.values():
        decides = " (decides)" if protocol is LABELS[found["protocol"]] else ""
        name = f'<i class="swatch" style="--accent: {protocol.color}"></i>{protocol.label}{decides}'
        both = [protocol.of(found["best_figures"][split]) for split in ("validation", "test")]
        rows.append([name, *(percent_with_error(own.get("mean"), own.get("stderr")) for own in both)])
    return section(
        f"Best: trial {trial['trial']}",
        f'<p class="subtitle">{parted(settings)}</p>',
        table(["clients", "validation", "test"], rows),
        note(
            f"{escape(found['score'].capitalize())} in percent, mean over clients ± standard error. It was chosen "
            "by validation examples alone. Test figures are shown of the chosen trial, and of no other."
        ),
    )


def _slices(found: Record) -> str:
    caption = "Each dot is a complete trial, the large one the best. Grey marks at the bottom: tried, without a result."
    drawn = [
        chart(
            f"slice-{n}", escape(key), f"Validation {found['score']} against {key}.", caption, slice_chart(found, key)
        )
        for n, key in enumerate(keys_of(found))
    ]
    return f'<div style="{SIDE_BY_SIDE}">\n{"".join(drawn)}</div>'


def _curves(found: Record) -> str:
    label = f"Validation {found['score']} of each trial against rounds."
    caption = "Mean over clients on validation examples, at each evaluation. A line that ends early has no result."
    return chart("curves", "Trials", label, caption, curves_chart(found))


def _lists(found: Record) -> list[str]:
    keys = keys_of(found)
    lists = []
    if ranked := with_result(found):
        rows = [[*_cells(trial, keys), percent(trial["validation"])] for trial in ranked]
        lists.append(section("Complete", table(_headings(keys, "validation"), rows)))
    if others := without_result(found):
        rows = [[*_cells(trial, keys), escape(trial["ending"])] for trial in others]
        why = note("Their scores, had they gone on, are not known; they are no results of the method.")
        lists.append(section("Not complete", table(_headings(keys, "why"), rows), why))
    return lists


def _headings(keys: Sequence[str], last: str) -> list[str]:
    return ["trial", *map(escape, keys), last]


def _cells(trial: Record, keys: Sequence[str]) -> list[str]:
    return [str(trial["trial"]), *(escape(shown(trial["settings"][key])) for key in keys)]
