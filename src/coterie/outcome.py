"""The figures of a finished run: its summary, and a row for each client."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from coterie import registry
from coterie.clients.announcement import Announcement
from coterie.clients.clients import Clients
from coterie.clients.work import Work
from coterie.core.method import Prepares
from coterie.measure.evaluate import Evaluation, OnSplit, Scores, among, measured
from coterie.measure.record import Record
from coterie.measure.summary import ALL, OUTPUTS, OWN, Summary, last_evaluations, protocol, totals, which, with_last10
from coterie.server.rounds import Rounds


def summarize(announcement: Announcement, clients: Clients, rounds: Rounds, evaluation: Evaluation) -> Summary:
    """Return the summary of a run, whose last evaluation is given."""
    final = rounds.history[-1].eval if rounds.history else None
    final = final or measured(clients, evaluation, Scores.of({}))
    figures = with_last10(final, rounds.history)
    present = rounds.population.present(max(1, len(rounds.history)))
    score, choices = announcement.objective.score, _choices(announcement, clients, rounds)
    noted = [record.notes["emphasis"] for record in rounds.history if "emphasis" in record.notes]
    return Summary(
        method=registry.name_of("method", announcement.method),
        engine=clients.engine_name,
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


def work_of(announcement: Announcement, rounds: Rounds) -> Work:
    """Return the work of clients, as the server of a run knows it."""
    return Work(announcement.method, rounds.task, announcement.labels, announcement.seed)


def _choices(announcement: Announcement, clients: Clients, rounds: Rounds) -> str:
    """Return what a client's model chooses among; empty if it does not predict classes."""
    if announcement.objective.score != "accuracy":
        return ""
    is_global = announcement.labels == "global"
    labels = len(announcement.classes) if is_global else clients.classes.lengths().min()
    if work_of(announcement, rounds).shares_head and labels < rounds.task.num_outputs:
        return OUTPUTS
    return ALL if is_global else OWN


def client_rows(
    announcement: Announcement, clients: Clients, history: Sequence[Record], evaluation: Evaluation
) -> list[dict[str, Any]]:
    """Return a row for each evaluated client, as in clients.csv."""
    visits, test, ids = _visits(history), evaluation.test, clients.ids
    rows = []
    for role, plain, adapted in (("existing", test.as_is, test.adapted), ("new", test.before, test.after)):
        scores = zip(plain.accuracy, plain.restricted, adapted.accuracy, adapted.restricted, strict=True)
        for i, (accuracy, restricted, after, after_restricted) in zip(plain.clients, scores, strict=True):
            rows.append(
                {
                    "client": ids[i],
                    "role": role,
                    "classes": json.dumps(
                        [str(announcement.classes[k]) for k in clients.classes.row(i)], ensure_ascii=False
                    ),
                    "train_examples": int(clients.sizes("train")[i]),
                    "test_examples": int(clients.sizes("test")[i]),
                    "visits": visits[ids[i]],
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


def _parts(clients: Clients, history: Sequence[Record], test: OnSplit) -> dict[str, Any]:
    """Return figures over those parts of the clients that a mean over all of them would hide."""
    visits, parts = _visits(history), dict[str, Any]()
    visited = {i for i in test.as_is.clients if visits[clients.ids[i]]}
    if history and (never := set(test.as_is.clients) - visited):
        parts["never_visited"] = among(clients, test, never).existing
        parts["visited"] = among(clients, test, visited).existing if visited else None
    evaluated = [*test.as_is.clients, *test.before.clients]
    if single := [i for i in evaluated if len(clients.classes.row(i)) == 1]:
        parts["one_class"] = tuple(clients.ids[i] for i in single)
        parts["several_classes"] = among(clients, test, set(evaluated) - set(single))
    return parts
