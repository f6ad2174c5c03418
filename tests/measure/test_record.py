"""Records and summaries: how they are laid out in JSON, and what is read from folders of other versions."""

import json
from dataclasses import fields, replace

import pytest

from coterie.measure.cost import Cost
from coterie.measure.protocols import OF_ALL_CLIENTS, PARTICIPANTS, PROTOCOLS, Existing, Figures, New, Statistics
from coterie.measure.record import Evaluated, PopulationSize, Record
from coterie.measure.summary import OWN, Summary

ONE = Statistics(0.5, 0.6, 0.1, 0.05, 0.4, 0.7, loss=0.8, train_loss=0.9, clients=9)
FIGURES = {
    "mean": 0.5,
    "weighted_mean": 0.6,
    "std": 0.1,
    "stderr": 0.05,
    "bottom_decile": 0.4,
    "restricted_mean": 0.7,
    "loss": 0.8,
    "train_loss": 0.9,
    "clients": 9,
}
NOBODY = dict.fromkeys(FIGURES)
SPENT = {"bytes_down": 1, "bytes_up": 2, "flops": 3, "body_forwards": 4, "body_backwards": 5}
SPENT |= {"seconds": 6.5, "eval_seconds": 7.5}
COST = Cost(1, 2, 3, 4, 5, 6.5, 7.5)
TEST = {
    "existing": {"as_is": FIGURES, "adapted": FIGURES, "participants": NOBODY},
    "new": {"before": NOBODY, "after": FIGURES},
}
KEPT = {"existing": {"as_is": FIGURES, "adapted": NOBODY}, "new": {"before": NOBODY, "after": NOBODY}}
EVALUATED = Evaluated(Existing(ONE, ONE, Statistics()), New(after=ONE), 0.25, Figures(Existing(ONE), New()), ONE)


def test_the_types_have_the_protocols_of_the_table():
    groups = {"existing": Existing, "new": New}
    for group, cls in groups.items():
        assert [field.name for field in fields(cls)] == [each.name for each in PROTOCOLS if each.group == group]
    assert [each.key for each in PROTOCOLS if each not in OF_ALL_CLIENTS] == [PARTICIPANTS.key]


def test_statistics_are_found_by_the_key_of_their_protocol():
    figures = Figures(Existing(ONE), New())
    assert figures["existing.as_is"] is ONE
    assert figures["existing.participants"] == figures["new.after"] == Statistics()
    with pytest.raises(KeyError):
        figures["existing.before"]


def written(record):
    """Key by key, in their order."""
    return json.dumps(record.to_json())


def test_a_round_as_in_rounds_jsonl():
    plain = {"round": 1, "cohort": ["a", "b"], "train_loss": 0.5, "cost": SPENT}
    record = Record(1, ("a", "b"), 0.5, COST)
    assert written(record) == json.dumps(plain)
    assert Record.from_json(json.loads(written(record))) == record


def test_a_round_with_everything():
    whole = {
        "round": 2,
        "cohort": ["a"],
        "train_loss": None,
        "population": {"clients": 3, "examples": 7},
        "silent": ["b"],
        "notes": {"beta": 0.5, "rate": "too large"},
        "refused": {"a": "too large"},
        "digests": {"a": "5f"},
        "eval": {**TEST, "validation": KEPT, "train_loss": 0.25, "train_score": FIGURES},
        "cost": SPENT,
    }
    notes = {"beta": 0.5, "rate": "too large"}
    record = Record(
        2, ("a",), None, COST, EVALUATED, PopulationSize(3, 7), ("b",), {"a": "too large"}, {"a": "5f"}, notes
    )
    assert written(record) == json.dumps(whole)
    assert Record.from_json(json.loads(written(record))) == record


def summary(**changes):
    facts = {"method": "fedavg", "engine": "loop", "seed": 1, "rounds": 2, "score": "accuracy", "protocol": "A."}
    figures = {"existing": Existing(ONE, ONE, Statistics()), "new": New(after=ONE)}
    return Summary(**facts, **figures, train_loss=None, cost=COST, **changes)


def test_a_summary_as_in_summary_json():
    groups = {
        group: {name: {**own, "last10_mean": None, "clients": own["clients"]} for name, own in protocols.items()}
        for group, protocols in TEST.items()
    }
    facts = {"method": "fedavg", "engine": "loop", "seed": 1, "rounds": 2, "score": "accuracy", "protocol": "A."}
    facts |= {"choices": "", "void_rounds": 0}
    plain = {**facts, **groups, "train_loss": None, "cost": SPENT}
    assert json.loads(written(summary())) == plain
    parts = {
        "visited": KEPT["existing"],
        "never_visited": KEPT["existing"],
        "one_class": ["a"],
        "several_classes": KEPT,
    }
    ending = {"validation": KEPT, "emphasis": 0.5, "train_loss": None, "train_score": FIGURES, "cost": SPENT}
    whole = {**facts, "choices": OWN, "void_rounds": 1, "evaluations": 4, **groups, **parts, **ending}
    some = Existing(ONE)
    full = summary(
        choices=OWN,
        void_rounds=1,
        evaluations=4,
        visited=some,
        never_visited=some,
        one_class=("a",),
        several_classes=Figures(some, New()),
        validation=Figures(some, New()),
        emphasis=0.5,
        train_score=ONE,
    )
    assert json.loads(written(full)) == whole
    assert Summary.from_json(json.loads(written(full))) == full
    for each in (summary(), full):
        assert Summary.from_json(json.loads(written(each))).to_json() == each.to_json()


def test_folders_of_other_versions_are_read():
    """Keys that did not exist yet are missing, and keys that exist no more or not yet are ignored."""
    tree = summary().to_json()
    for key in ("score", "existing", "train_loss"):
        del tree[key]
    del tree["new"]["before"], tree["new"]["after"]["restricted_mean"], tree["cost"]["flops"]
    tree |= {"later": 1}
    tree["new"]["elsewhere"] = tree["cost"]["joules"] = 2
    read = Summary.from_json(tree)
    assert read.score == "accuracy"
    assert read.existing == Existing()
    assert read.new == New(after=replace(ONE, restricted_mean=None))
    assert read.cost == Cost(1, 2, 0, 4, 5, 6.5, 7.5)
    assert Record.from_json({"round": 3, "remarks": ["slow"], "eval": {"later": 1}}) == Record(
        3, (), None, Cost(), Evaluated(Existing(), New())
    )
