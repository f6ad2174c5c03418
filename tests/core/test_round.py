"""What crosses the network in a round."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import reference as ref
from coterie.core.round import Round, Update
from coterie.methods import PFLEGO, FedAvg
from coterie.settings import Epochs


@pytest.mark.parametrize("weights", [[0.25, 0.75], [1.0, 3.0], [2.0, 0.5], [1.0]])
def test_the_mean_of_a_number_is_weighted_and_weights_need_not_sum_to_one(weights: list[float]) -> None:
    losses, steps = [4.0, 8.0][: len(weights)], [1.0, -2.0][: len(weights)]
    numbers = {"loss": torch.tensor(np.dot(weights, losses)), "step": torch.tensor(np.dot(weights, steps))}
    update = Update({}, numbers, torch.tensor(sum(weights), dtype=torch.float64))
    assert float(update.mean("loss")) == pytest.approx(np.average(losses, weights=weights), rel=1e-12)
    assert float(update.mean("step")) == pytest.approx(np.average(steps, weights=weights), rel=1e-12)
    with pytest.raises(KeyError, match="accuracy"):
        update.mean("accuracy")


@pytest.mark.parametrize("method", [FedAvg(tau=1), FedAvg(tau=1, users="equal"), PFLEGO(tau=1, server="sgd")])
def test_the_update_of_a_cohort_has_the_mean_of_its_losses(method: FedAvg | PFLEGO) -> None:
    """Weights of PFLEGO do not sum to one over a cohort."""
    setup = ref.setup(method)
    shared, kept, rnd = method.init_shared(setup.task), ref.store(setup), ref.announced(setup, 2)
    sizes = torch.tensor([5.0, 8.0], dtype=torch.float64)
    weights = method.weights(sizes, rnd)
    losses = [ref.loss_and_gradient(ref.arrays({**shared, **kept[i]}), *ref.examples(setup, i))[0] for i in (0, 2)]
    update = kept.update(shared, [0, 2], weights, rnd, scored=False).update
    assert update is not None
    assert float(update.weight) == pytest.approx(float(weights.sum()), rel=1e-12)
    assert float(update.mean("loss")) == pytest.approx(np.average(losses, weights=weights), rel=1e-12)
    assert "loss" not in update.tensors


def test_a_round_is_announced_with_its_steps() -> None:
    rnd = Round(3, 4, 17, 2.0, 5)
    assert rnd.steps == 0
    assert rnd.announce(steps=7).steps == 7
    epochs = rnd.announce(steps="2 epochs")
    assert (epochs.steps, type(epochs.steps)) == (2, Epochs)
    assert replace(epochs, steps=0) == rnd
