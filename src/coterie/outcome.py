"""The figures of a finished run: its summary, and a row for each client."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from coterie import registry
from coterie.clients.announcement import Announcement
from coterie.clients.simulated import Simulated
from coterie.core.method import Prepares
from coterie.data.federation import Federation
from coterie.measure.evaluate import Evaluation, OnSplit, Scores, among, measured
from coterie.measure.record import Record
from coterie.measure.summary import Summary, last_evaluations, protocol, totals, which, with_last10
from coterie.server.rounds import Rounds


def summarize(announcement: Announcement, clients: Simulated, rounds: Rounds, evaluation: Evaluation) -> Summary:
    """Return the summary of a run, whose last evaluation is given."""
    final = rounds.history[-1].eval if rounds.history else None
    final = final or measured(clients, evaluation, Scores.of({}))
    figures = with_last10(final, rounds.history)
    present = rounds.population.present(max(1, len(rounds.history)))
    score, choices = announcement.objective.score, clients.load.choices
    noted = [record.notes["emphasis"] for record in rounds.history if "emphasis" in record.notes]
    return Summary(
        method=registry.name_of("method", announcement.method),
        engine=registry.name_of("engine", clients.engine),
        seed=announcement.seed,
        rounds=len(rounds.history),
        score=score,
        protocol=protocol(
            score,
            choices,
            rounds.adapt_steps,
            len(rounds.history),
            which(len(evaluation.test.as_is.clients), len(present)),
            which(len(evaluation.test.before.clients), len(rounds.new)),
            prepares=isinstance(announcement.method, Prepares),
        ),
        choices=choices,
        void_rounds=sum(not record.cohort for record in rounds.history),
        evaluations=len(last_evaluations(rounds.history)),
        existing=figures.existing,
        new=figures.new,
        **_parts(clients, rounds.history, evaluation.test),
        validation=final.validation,
        emphasis=float(noted[0]) if noted else None,
        train_loss=final.train_loss,
        train_score=final.train_score,
        stop=rounds.stopping.chosen(rounds.history),
        cost=totals(rounds.history),
        stored_bytes=evaluation.stored_bytes,
    )


def client_rows(federation: Federation, history: Sequence[Record], evaluation: Evaluation) -> list[dict[str, Any]]:
    """Return a row for each evaluated client, as in clients.csv."""
    visits = _visits(history)
    test = evaluation.test
    rows = []
    for role, plain, adapted in (("existing", test.as_is, test.adapted), ("new", test.before, test.after)):
        scores = zip(plain.accuracy, plain.restricted, adapted.accuracy, adapted.restricted, strict=True)
        for i, (accuracy, restricted, after, after_restricted) in zip(plain.clients, scores, strict=True):
            rows.append(
                {
                    "client": federation.ids[i],
                    "role": role,
                    "classes": json.dumps(
                        [str(federation.labels[k]) for k in federation.classes.row(i)], ensure_ascii=False
                    ),
                    "train_examples": int(federation.sizes("train")[i]),
                    "test_examples": int(federation.sizes("test")[i]),
                    "visits": visits[federation.ids[i]],
                    "accuracy": float(accuracy),
                    "restricted": float(restricted),
                    "adapted": float(after),
                    "adapted_restricted": float(after_restricted),
                }
            )
    return rows


def _visits(history: Sequence[Record]) -> Counter[str]:
    """Count the rounds in which each client took part and its reply was used."""
    return Counter(client for record in history for client in record.cohort if client not in record.refused)


def _parts(clients: Simulated, history: Sequence[Record], test: OnSplit) -> dict[str, Any]:
    """Return figures over those parts of the clients that a mean over all of them would hide."""
    visits, federation, parts = _visits(history), clients.load.federation, dict[str, Any]()
    visited = {i for i in test.as_is.clients if visits[clients.ids[i]]}
    if history and (never := set(test.as_is.clients) - visited):
        parts["never_visited"] = among(clients, test, never).existing
        parts["visited"] = among(clients, test, visited).existing if visited else None
    evaluated = [*test.as_is.clients, *test.before.clients]
    if single := [i for i in evaluated if len(federation.classes.row(i)) == 1]:
        parts["one_class"] = tuple(clients.ids[i] for i in single)
        parts["several_classes"] = among(clients, test, set(evaluated) - set(single))
    return parts
