"""The scores of participants are those of their models right after the local update."""

import pytest
import torch

import reference as ref
from coterie.core.tree import shift
from coterie.methods import GD, PFLEGO, FedAvg, FedPer

METHODS = [FedAvg(tau=20, eta=0.5), FedPer(tau=20, beta=0.5), GD(gamma=0.5), PFLEGO(tau=10, beta=0.5)]


@pytest.mark.parametrize("method", METHODS)
def test_a_participant_is_scored_with_the_model_that_its_update_leaves(method):
    """A client that sends how far it moved holds the moved model; one that sends a gradient holds what it received."""
    setup = ref.setup(method)
    shared, cohort = method.init_shared(setup.task), [0, 1, 2]
    kept, rnd = ref.store(setup), ref.announced(setup, 3)
    before = [kept[i] for i in cohort]
    played = ref.play(setup, shared, method.init_memory(setup.task, shared), kept, cohort, rnd, scored=True)
    differ = []
    for i, personal in zip(cohort, before, strict=True):
        reply = method.local_update(setup.task, shared, personal, setup.data(i, "train", 1), rnd)
        held = shared if isinstance(method, GD | PFLEGO) else shift(shared, reply.tensors)
        test = setup.data(i, "test", 0)
        outputs = setup.task.outputs({**held, **reply.personal}, test.x)
        expected = setup.task.objective.scores(outputs, test.y, test.mask, test.classes)
        assert {name: int(value) for name, value in played.scores[i].items()} == {
            name: int(value) for name, value in expected.items()
        }
        other = shared if held is not shared else shift(shared, {n: -v for n, v in reply.tensors.items()})
        theirs = setup.task.outputs({**other, **reply.personal}, test.x)
        differ.append(not torch.equal(outputs.argmax(1), theirs.argmax(1)))
    assert any(differ), "the two models answer alike, so the test could not fail"
