"""FedSGD against its paper: a round by hand in NumPy, and the methods that it equals after one step."""

import pytest

import reference as ref
from coterie.methods import FOMAML, FedAvg, FedSGD

ALL = ref.BODY + ref.HEAD


def played(method, cohort=(0, 2, 3)):
    setup = ref.setup(method)
    rnd = ref.announced(setup, len(cohort))
    return setup, ref.play(setup, setup.task.shared_model(), {}, ref.store(setup), list(cohort), rnd).shared


@pytest.mark.parametrize(("users", "weights"), [("sizes", [5 / 14, 8 / 14, 1 / 14]), ("equal", [1 / 3] * 3)])
def test_a_round_by_hand(users, weights):
    setup, after = played(FedSGD(eta=0.4, users=users))
    w = ref.arrays(setup.task.initial)
    gradients = [ref.loss_and_gradient(w, *ref.examples(setup, i))[1] for i in (0, 2, 3)]
    mean = {name: sum(share * g[name] for share, g in zip(weights, gradients, strict=True)) for name in ALL}
    ref.assert_same(after, ref.step(w, mean, 0.4, ALL))


@pytest.mark.usefixtures("taped")
@pytest.mark.parametrize("batch_size", [0, 2])
def test_it_is_one_step_of_others_to_the_bit(batch_size):
    _, by_size = played(FedSGD(eta=0.4, batch_size=batch_size))
    _, alike = played(FedSGD(eta=0.4, batch_size=batch_size, users="equal"))
    ref.assert_same(played(FedAvg(tau=1, eta=0.4, batch_size=batch_size))[1], ref.arrays(by_size), 0)
    ref.assert_same(played(FOMAML(tau=1, eta=0.4, batch_size=batch_size))[1], ref.arrays(alike), 0)
