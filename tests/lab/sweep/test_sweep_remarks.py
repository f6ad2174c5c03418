"""What a sweep says about the scores of its best trial."""

from types import SimpleNamespace

import pytest

from coterie.lab.sweep.outcome import remarks
from coterie.measure.summary import ALL, OWN, Summary


def summary(choices, **more):
    facts = {"method": "pflego", "engine": "loop", "seed": 0, "rounds": 4, "protocol": "", "choices": choices}
    return Summary.from_json({**facts, **more})


@pytest.mark.parametrize(("choices", "told"), [(OWN, "its own classes"), (ALL, "all classes")])
def test_the_label_space_is_named(choices, told):
    found = SimpleNamespace(summary=summary(choices), keys=["method.beta"])
    assert remarks(found) == [f"A client chooses among {told}."]


def test_trials_of_different_label_spaces_are_not_to_be_compared():
    (remark,) = remarks(SimpleNamespace(summary=summary(OWN), keys=["model.labels"]))
    assert remark.endswith("so do not compare their scores directly.")


def test_what_distorts_the_means_is_said():
    found = SimpleNamespace(summary=summary("", void_rounds=3), keys=[])
    assert remarks(found) == ["3 of 4 rounds had no clients."]
    assert remarks(SimpleNamespace(summary=None, keys=[])) == []
