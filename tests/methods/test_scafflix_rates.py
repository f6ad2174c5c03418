"""The rates of the Scafflix paper as functions of p, and Corollary 6, compared with the method as it runs."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import laboratory as lab
import reference as ref
from coterie.core.steps.sampling import expected_smoothness
from coterie.methods import IScaffnew, Scafflix, Scaffnew
from coterie.models.logreg import LogReg

EPSILON = 0.02
"""Accuracy for Corollary 6."""
NEWTON = {"optimum_solver": "newton", "optimum_tolerance": 1e-13}


def linear(tree, label=""):
    return lab.vector(tree, label, lab.LINEAR)


class Solved:
    """The solution of (FLIX) for quadratic problems, and Ψ of a game's clients."""

    def __init__(self, f, alpha, gamma, p):
        self.gamma, self.p = gamma, p
        own, best = [q.minimum() for q in f], lab.flix_solution(f, alpha)
        self.models = [a * best + (1 - a) * x for a, x in zip(alpha, own, strict=True)]
        self.gradients = [q.gradient(model) for q, model in zip(f, self.models, strict=True)]

    def psi(self, states):
        return lab.lyapunov(states, self.models, self.gradients, self.gamma, self.p)


def spectra(f):
    return [np.linalg.eigvalsh(q.H) for q in f]


def needed(setup, f, solved, share, seeds):
    """Return the mean rounds and the mean local steps until Ψ is a share of what it is at first."""
    counts = []
    for seed in range(seeds):
        game = lab.seeded(setup, seed)

        def states(shared, store, game=game):
            model = game.method.personal_params
            return [(linear(model(game.task, shared, store[i])), linear(store[i], "h")) for i in range(len(f))]

        first, steps = solved.psi(states(game.method.init_shared(game.task), ref.store(game))), 0
        for rnd, shared, store in lab.play(game, 10**5):
            steps += rnd.steps
            if solved.psi(states(shared, store)) < share * first:
                counts.append((rnd.index, steps))
                break
    return np.mean(counts, 0)


KAPPA, SHARE = 36.0, 1e-3
"""Condition number of both clients of the sweep, and the part of Ψ^0 that is reached."""
CHANCES = (1.0, 0.5, 1 / 6, 0.05, 0.02)
"""Values of p for the sweep. The third is 1/sqrt(κ)."""


@pytest.fixture(scope="module")
def sweep():
    """The rounds and local steps that each p needs."""
    counts = []
    for p in CHANCES:
        setup, f = lab.ill_conditioned(IScaffnew(gamma="1/L", p=p), KAPPA)
        gamma = [1 / s[-1] for s in spectra(f)]
        counts.append(needed(setup, f, Solved(f, [1.0, 1.0], gamma, p), SHARE, seeds=3))
    return np.array(counts).T


def test_no_p_needs_more_than_the_bounds(sweep):
    """(6) and (7) with their constant: log(Ψ^0/ε) / ζ local steps, ζ = min(1/κ, p²), and p times as many rounds."""
    rounds, steps = sweep
    zeta = np.minimum(1 / KAPPA, np.array(CHANCES) ** 2)
    assert (steps < 1.3 * np.log(1 / SHARE) / zeta + 3 / np.array(CHANCES)).all(), steps * zeta
    assert (rounds < 1.3 * np.array(CHANCES) * np.log(1 / SHARE) / zeta + 3).all()


def test_rounds_fall_with_p_down_to_one_over_the_root_of_kappa_and_then_rise(sweep):
    """In (7), p κ is the larger term above that p, where local steps cost no more; below it the term 1/p is."""
    rounds, steps = sweep
    middle = CHANCES.index(1 / 6)
    assert rounds.argmin() == middle
    assert rounds[0] > 1.5 * rounds[1] > 1.5 * 1.5 * rounds[middle]
    assert rounds[-1] > rounds[middle]
    assert (steps[:middle] < 1.5 * steps[0]).all()
    assert steps[-1] > 3 * steps[middle]


def uneven(method):
    """Return a game of clients with equal κ_i = 10, while max L_i / min μ_i is 100. An intercept adds curvature 2."""
    directions = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]])
    clients = {}
    for i, spectrum in enumerate(([0.1, 1.0], [10.0, 1.0])):
        x = directions * np.sqrt(spectrum)
        y = x @ np.array([[3.0, -1.0], [1.0, 2.0]])[i]
        clients[f"c{i}"] = (x, y, x, y)
    setup = ref.setup(method, ref.Federation.from_arrays(clients, regression=True), LogReg())
    return setup, lab.quadratics(setup)


def test_own_step_sizes_depend_on_the_largest_kappa_and_a_common_one_on_the_global_kappa():
    """This is about local steps (6), each method at its own best p, which is sqrt(10) times as large for own steps."""
    steps = []
    for cls, kappa in ((IScaffnew, 10), (Scaffnew, 100)):
        setup, f = uneven(cls(gamma="1/L", p="optimal"))
        L, mu = ([s[place] for s in spectra(f)] for place in (-1, 0))
        np.testing.assert_allclose([top / low for top, low in zip(L, mu, strict=True)], 10, rtol=1e-9)
        gamma = [1 / each for each in L] if cls is IScaffnew else [1 / max(L)] * 2
        assert setup.method.p == pytest.approx(kappa**-0.5, rel=1e-9)
        solved = Solved(f, [1.0, 1.0], gamma, setup.method.p)
        steps.append(needed(setup, f, solved, SHARE, seeds=4)[1])
        assert steps[-1] < 1.3 * kappa * np.log(1 / SHARE)
    assert 1.5 * steps[0] < steps[1]


# -- Corollary 6


def test_corollary_6():
    """With its step sizes and p, the mean of Ψ is below ε after log(2Ψ^0/ε) / ζ local steps on minibatches.

    Where the noise does not limit the step sizes, Ψ ends higher.
    """
    alpha = [0.9, 0.3, 0.5]
    given = {str(i): each for i, each in enumerate(alpha)}
    common = {"alpha": given, "gamma": "1/A", "p": "optimal", "mu": 1.0, "batch_size": 8, "sampling": "independent"}
    method = Scafflix(epsilon=EPSILON, **common, **NEWTON)
    ends, T = [], 0
    for each in (method, replace(method, epsilon=0.0)):
        setup, f = lab.least_squares(each, mu=0.3)
        gamma = [float(ref.store(setup)[i][".gamma"]) for i in range(3)]
        zeta = min(g * s[0] for g, s in zip(gamma, spectra(f), strict=True))
        assert setup.method.p == pytest.approx(np.sqrt(zeta), rel=1e-6)
        solved = Solved(f, alpha, gamma, setup.method.p)
        for i, best in enumerate(solved.models):
            at = {"head.weight": torch.as_tensor(best[None, :-1]), "head.bias": torch.as_tensor(best[-1:])}
            there, here = (
                expected_smoothness(setup.task, x, setup.data(i, "train", 0), 1.0, 8) for x in (at, setup.task.initial)
            )
            assert there.C <= here.C, "the noise at the initial model is the larger one"
            assert gamma[i] == pytest.approx(1 / here.A) or each.epsilon
        first = solved.psi(next(lab.at_iterations(setup, [0])))
        T = T or int(np.log(2 * first / EPSILON) / zeta) + 1
        ends.append(np.mean([solved.psi(next(lab.at_iterations(lab.seeded(setup, seed), [T]))) for seed in range(5)]))
    assert ends[0] < EPSILON < 0.2 * first
    assert ends[0] < ends[1]
