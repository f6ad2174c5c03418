"""The page of a sweep: the best trial, the score against each setting, and the curve of every trial."""

from collections.abc import Sequence
from html import escape
from typing import Any

from coterie.lab.sweep.charts import curves_chart, slice_chart
from coterie.lab.sweep.outcome import Outcome, remarks
from coterie.lab.sweep.space import shown
from coterie.lab.sweep.trial import Trial
from coterie.measure.protocols import CHOOSES
from coterie.report.document import chart, document, note, parted, recipe_section, section, table
from coterie.report.lab_page import SIDE_BY_SIDE
from coterie.report.looks import BLUE, LOOKS, ORANGE, RED, TEAL
from coterie.report.units import percent, percent_with_error
from coterie.report.words import things


def sweep_page(name: str, found: Outcome, best_recipe: dict[str, Any] | None) -> str:
    """Return the page as HTML; `best_recipe` is the recipe of the best trial, if there is one."""
    body = [_cards(found)]
    if found.best is not None:
        body.append(_best(found, found.best))
    body += [_slices(found), _curves(found), *_lists(found)]
    if best_recipe is not None:
        body.append(recipe_section("best.toml, with the value of every setting", best_recipe))
    subtitle = [
        f"<strong>{escape(found.method)}</strong> on <strong>{escape(found.data)}</strong>",
        f"{escape(found.search)}, {things(len(found.trials), 'trial')} of {found.planned:,}",
        things(found.rounds, "round"),
        f"seed {found.seed}",
    ]
    return document(name, parted(subtitle), "\n".join(body))


def _cards(found: Outcome) -> str:
    title = CHOOSES[found.protocol].title
    counts = {state: _count(found, state) for state in ("pruned", "diverged", "failed")}
    given_up = ", ".join(f"{number:,} {state}" for state, number in counts.items() if number)
    cards = [
        _card(BLUE, "Best on validation", title, _mean(found, "validation"), "used to choose"),
        _card(ORANGE, "Its test score", title, _mean(found, "test"), "shown for the best trial only"),
        _card(TEAL, "Complete", "with a result", f"<b>{len(found.complete):,}</b>", "the best trial is one of these"),
        _card(RED, "Incomplete", "without a result", f"<b>{sum(counts.values()):,}</b>", given_up or "none"),
    ]
    return f'<div class="cards">{"".join(cards)}</div>'


def _card(color: str, who: str, how: str, value: str, below: str) -> str:
    return (
        f'<div class="card" style="--accent: {color}"><p class="who">{who} <span>{how}</span></p>\n'
        f'<p class="value">{value}</p>\n<p class="below">{below}</p></div>\n'
    )


def _mean(found: Outcome, split: str) -> str:
    if split not in found.best_figures:
        return f"<b>{percent(None)}</b>"
    own = found.best_figures[split][CHOOSES[found.protocol].key]
    error = "one client" if own.clients == 1 else f"± {percent(own.stderr, 1)} %"
    return f"<b>{percent(own.mean, 1)}</b> <span>{error}</span>"


def _count(found: Outcome, state: str) -> int:
    return sum(trial.state == state for trial in found.trials)


def _best(found: Outcome, trial: Trial) -> str:
    settings = [f"{escape(key)} <strong>{escape(shown(value))}</strong>" for key, value in trial.point.items()]
    rows = []
    for setting, protocol in CHOOSES.items():
        decides = " (used to choose)" if setting == found.protocol else ""
        name = f'<i class="swatch" style="--accent: {LOOKS[protocol].color}"></i>{protocol.title}{decides}'
        both = [found.best_figures[split][protocol.key] for split in ("validation", "test")]
        rows.append([name, *(percent_with_error(own.mean, own.stderr, own.clients) for own in both)])
    return section(
        f"Best: trial {trial.number}",
        f'<p class="subtitle">{parted(settings)}</p>',
        table(["clients", "validation", "test"], rows),
        note(
            f"{escape(found.score.capitalize())} in percent, mean over clients ± standard error. Only validation "
            "examples were used to choose this trial. Test scores are shown for no other trial. "
            f"{escape(' '.join(remarks(found)))}"
        ),
    )


def _slices(found: Outcome) -> str:
    caption = "Each dot is a complete trial. The large one is the best. Grey marks at the bottom: the incomplete ones."
    drawn = [
        chart(f"slice-{n}", escape(key), f"Validation {found.score} against {key}.", caption, slice_chart(found, key))
        for n, key in enumerate(found.keys)
    ]
    return f'<div style="{SIDE_BY_SIDE}">\n{"".join(drawn)}</div>'


def _curves(found: Outcome) -> str:
    label = f"Validation {found.score} of each trial by round."
    caption = (
        "Mean over clients on validation examples, at each evaluation. Lines that end early are incomplete trials."
    )
    return chart("curves", "Trials", label, caption, curves_chart(found))


def _lists(found: Outcome) -> list[str]:
    keys = found.keys
    lists = []
    if ranked := found.complete:
        rows = [[*_cells(trial, keys), percent(trial.score)] for trial in ranked]
        lists.append(section("Complete", table(_headings(keys, "validation"), rows)))
    if others := found.incomplete:
        rows = [[*_cells(trial, keys), escape(trial.ending)] for trial in others]
        why = note("These trials ended early, so their final scores are not known. They are not results of the method.")
        lists.append(section("Incomplete", table(_headings(keys, "why"), rows), why))
    return lists


def _headings(keys: Sequence[str], last: str) -> list[str]:
    return ["trial", *map(escape, keys), last]


def _cells(trial: Trial, keys: Sequence[str]) -> list[str]:
    return [str(trial.number), *(escape(shown(trial.point[key])) for key in keys)]
