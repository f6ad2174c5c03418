"""FedAdam, FedYogi and FedAvgM against their papers: rounds by hand in NumPy, PyTorch's momentum, and FedAvg."""

import numpy as np
import pytest
import torch

import reference as ref
from coterie.methods import FedAdam, FedAvg, FedAvgM, FedYogi

ALL = ref.BODY + ref.HEAD


def mean_displacement(setup, w, cohort):
    ends = []
    for i in cohort:
        params = w
        for _ in range(setup.method.tau):
            params = ref.step(params, ref.loss_and_gradient(params, *ref.examples(setup, i))[1], setup.method.eta, ALL)
        ends.append(params)
    return {name: sum(end[name] for end in ends) / len(ends) - w[name] for name in ALL}


def rounds(setup, cohorts):
    shared = setup.task.shared_model()
    memory, store = setup.method.init_memory(setup.task, shared), ref.store(setup)
    for index, cohort in enumerate(cohorts, 1):
        played = ref.play(setup, shared, memory, store, cohort, ref.announced(setup, len(cohort), index))
        shared, memory = played.shared, played.memory
        yield shared


@pytest.mark.parametrize("method", [FedAdam, FedYogi])
def test_three_rounds_by_hand(method):
    cohorts, b1, b2, eps, rho = [[0, 2], [1, 2, 3], [0, 1]], 0.8, 0.7, 0.05, 0.1
    options = {"beta1": b1, "beta2": b2, "epsilon": eps, "rho": rho}
    setup = ref.setup(method(tau=3, eta=0.3, **options))
    w = ref.arrays(setup.task.initial)
    m, v = ({name: np.full_like(w[name], start) for name in ALL} for start in (0.0, eps**2))
    grew, shrank = False, False
    for cohort, shared in zip(cohorts, rounds(setup, cohorts), strict=True):
        delta = mean_displacement(setup, w, cohort)
        for name in ALL:
            d2 = delta[name] ** 2
            m[name] = b1 * m[name] + (1 - b1) * delta[name]
            grew, shrank = grew or (d2 > v[name]).any(), shrank or (d2 < v[name]).any()
            if method is FedAdam:
                v[name] = b2 * v[name] + (1 - b2) * d2
            else:
                v[name] = v[name] - (1 - b2) * d2 * np.sign(v[name] - d2)
            w = {**w, name: w[name] + rho * m[name] / (np.sqrt(v[name]) + eps)}
        ref.assert_same(shared, w)
    assert grew  # both of Yogi's signs
    assert shrank


def test_momentum_is_that_of_pytorch():
    cohorts = [[0, 2], [1, 2, 3], [0, 1]]
    setup = ref.setup(FedAvgM(tau=3, eta=0.3, rho=0.7, beta=0.6))
    w = {name: torch.nn.Parameter(value.clone()) for name, value in setup.task.initial.items()}
    optimizer = torch.optim.SGD(w.values(), lr=0.7, momentum=0.6)
    for cohort, shared in zip(cohorts, rounds(setup, cohorts), strict=True):
        delta = mean_displacement(setup, ref.arrays(w), cohort)
        for name in ALL:
            w[name].grad = -torch.from_numpy(delta[name])
        optimizer.step()
        ref.assert_same(shared, ref.arrays(w))


def test_without_momentum_it_is_fedavg():
    setup = ref.setup(FedAvgM(tau=3, eta=0.3, rho=1.0, beta=0.0, users="sizes"))
    *_, shared = rounds(setup, [[0, 2], [1, 3]])
    *_, expected = rounds(ref.setup(FedAvg(tau=3, eta=0.3)), [[0, 2], [1, 3]])
    ref.assert_same(shared, ref.arrays(expected), 1e-14)
