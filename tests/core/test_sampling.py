"""Independent minibatches, and their expected smoothness, compared with all subsets of a few examples."""

from itertools import combinations, pairwise

import numpy as np
import pytest
import torch

import laboratory as lab
import reference as ref
from coterie.core.steps.sampling import draws, expected_smoothness
from coterie.errors import UserError
from coterie.methods import GD


def test_each_batch_is_drawn_from_all_examples():
    setup = ref.setup(GD())
    data, counts, repeated = setup.data(2, "train", 0), np.zeros(8), 0
    order = {row.tobytes(): place for place, row in enumerate(data.x.numpy())}
    drawn = [[order[row.tobytes()] for row in batch.x.numpy()] for batch in draws(3000, data, 3)]
    for batch, following in pairwise(drawn):
        assert len(set(batch)) == 3
        counts[batch] += 1
        repeated += len(set(batch) & set(following))
    np.testing.assert_allclose(counts / 3000, 3 / 8, atol=0.03)
    assert repeated / 3000 == pytest.approx(3 * 3 / 8, abs=0.05)  # a shuffle would have far fewer


@pytest.mark.parametrize("size", [0, 8, 20])
def test_batches_of_everything_are_everything(size):
    setup = ref.setup(GD())
    data = setup.data(2, "train", 0)
    assert all(torch.equal(batch.x, data.x) for batch in draws(3, data, size))


def examples(i, setup):
    """Return the H and b of each example of a client, whose f_ij(x) is ½ xᵀ H x - bᵀ x."""
    x, y = ref.examples(setup, i)
    A = np.column_stack([x, np.ones(len(x))])
    H = [2 * np.outer(a, a) + 0.1 * np.eye(len(a)) for a in A]
    return H, [2 * a * t for a, t in zip(A, y, strict=True)]


def spread(H, b, batch, x, goal):
    """Return E ||g - goal||² at x, over all batches."""
    each = [h @ x - own for h, own in zip(H, b, strict=True)]
    return np.mean([np.sum((np.mean(part, 0) - goal) ** 2) for part in combinations(each, batch)])


@pytest.mark.parametrize("batch", [1, 2, 4])
def test_the_assumption_holds_with_these_constants(batch):
    """Where both points are equal, the left side is C/2: the paper's constant is twice the variance."""
    setup, _ = lab.least_squares(GD(), examples=5, mu=0.05)
    rng = np.random.default_rng(0)
    for i in range(3):
        H, b = examples(i, setup)
        f_i = lab.Quadratic(np.mean(H, 0), np.mean(b, 0))
        at = {"head.weight": torch.tensor(rng.normal(size=(1, 4))), "head.bias": torch.tensor(rng.normal(size=1))}
        best = lab.vector(at, names=lab.LINEAR)
        own, goal = expected_smoothness(setup.task, at, setup.data(i, "train", 0), 0.1, batch), f_i.gradient(best)
        assert pytest.approx(2 * spread(H, b, batch, best, goal), rel=1e-9) == own.C
        L, steepest = (max(np.linalg.eigvalsh(h)[-1] for h in some) for some in ([f_i.H], H))
        share = (5 - batch) / (4 * batch)
        assert pytest.approx(2 * (1 - share) * L + 2 * share * steepest, rel=1e-9) == own.A
        for scale in (0.01, 1, 100):
            x = best + scale * rng.normal(size=5)
            bregman = (x - best) @ f_i.H @ (x - best) / 2
            assert spread(H, b, batch, x, goal) <= (2 * own.A * bregman + own.C) * (1 + 1e-9)


def test_of_classes_the_variance_is_that_of_the_gradients():
    setup, f = lab.logistic(GD(), 0.1)
    own = expected_smoothness(setup.task, setup.task.initial, setup.data(0, "train", 0), 0.2, 1)
    wrong = 1 / (1 + np.exp(f[0].b * (f[0].A @ np.ones(4))))
    each = -(f[0].b * wrong)[:, None] * f[0].A
    variance = np.mean(np.sum((each - each.mean(0)) ** 2, 1))
    assert pytest.approx(2 * 2 * variance, rel=1e-9) == own.C  # two outputs: twice the squares of one vector
    assert pytest.approx(2 * (0.5 * np.max(np.sum(f[0].A ** 2, 1)) + 0.2), rel=1e-9) == own.A


def test_with_all_examples_there_is_no_noise():
    setup, f = lab.least_squares(GD())
    for batch in (0, 12, 40):
        own = expected_smoothness(setup.task, setup.task.initial, setup.data(1, "train", 0), 0.0, batch)
        assert pytest.approx(np.linalg.eigvalsh(f[1].H)[-1], rel=1e-9) == own.A
        assert own.C == 0
        assert own.step(1e-9, 0.1) == 1 / own.A


def test_the_step_size_of_corollary_6():
    setup, _ = lab.least_squares(GD())
    own = expected_smoothness(setup.task, setup.task.initial, setup.data(0, "train", 0), 0.1, 2)
    assert own.step(0.0, 0.3) == 1 / own.A
    assert own.step(1e-6, 0.3) == pytest.approx(1e-6 * 0.3 / (2 * own.C), rel=1e-12)
    assert own.step(1e-6, 0.3) < 1 / own.A
    assert own.step(1e6, 0.3) == 1 / own.A
    with pytest.raises(UserError, match=r"set method\.mu"):
        own.step(1e-6, 0.0)
