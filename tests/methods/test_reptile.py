"""Reptile against its paper: a round by hand in NumPy, and FedAvg at rate one."""

import pytest
import torch

import reference as ref
from coterie.methods import FedAvg, Reptile
from coterie.models.module import Own
from coterie.streams import torch_seeded
from engines import Norm

ALL = ref.BODY + ref.HEAD


def played(method, cohort=(0, 2, 3), model=None):
    setup = ref.setup(method, model=model)
    rnd = ref.announced(setup, len(cohort))
    return setup, ref.play(setup, setup.task.shared_model(), {}, ref.store(setup), list(cohort), rnd).shared


@pytest.mark.parametrize("rho", [0.25, 1.5])
def test_a_round_by_hand(rho):
    setup, after = played(Reptile(tau=3, eta=0.3, rho=rho))
    w, ends = ref.arrays(setup.task.initial), []
    for i in (0, 2, 3):
        params = w
        for _ in range(3):
            params = ref.step(params, ref.loss_and_gradient(params, *ref.examples(setup, i))[1], 0.3, ALL)
        ends.append(params)
    ref.assert_same(after, {name: (1 - rho) * w[name] + rho * sum(end[name] for end in ends) / 3 for name in ALL})


@pytest.mark.parametrize("batch_size", [0, 2])
def test_at_rate_one_it_is_fedavg(batch_size):
    _, one = played(Reptile(tau=3, eta=0.3, rho=1.0, users="sizes", batch_size=batch_size))
    _, other = played(FedAvg(tau=3, eta=0.3, batch_size=batch_size))
    ref.assert_same(one, ref.arrays(other), 1e-15)


def test_buffers_are_averaged_whatever_the_rate():
    with torch_seeded(0):
        own = Own(net=Norm(), head_name="fc")
    means = [played(Reptile(tau=2, rho=rho), (0, 1, 2), own)[1] for rho in (0.1, 1.0)]
    assert torch.equal(means[0]["norm.running_var"], means[1]["norm.running_var"])
    assert not torch.equal(means[0]["norm.weight"], means[1]["norm.weight"])
