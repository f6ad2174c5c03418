"""Convex problems with known constants, on which the theory of FedDecay can be checked with the method as it runs."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

import laboratory as lab
import reference as ref
from coterie import Federation
from coterie.core.method import Method
from coterie.methods import FedDecay
from coterie.models.logreg import LogReg
from coterie.models.module import Own


class Convex(NamedTuple):
    """The objective F = Σ p_i F_i."""

    federation: Federation
    problems: list[lab.Quadratic]
    p: Sequence[float]

    @property
    def F(self) -> lab.Quadratic:
        return lab.Quadratic(*(np.tensordot(self.p, parts, 1) for parts in zip(*self.problems, strict=True)))

    @property
    def best(self) -> np.ndarray:
        return self.F.minimum()

    @property
    def mu_and_L(self) -> tuple[float, float]:
        eigenvalues = np.linalg.eigvalsh([q.H for q in self.problems])
        return float(eigenvalues.min()), float(eigenvalues.max())

    def gap(self, path: np.ndarray) -> np.ndarray:
        away = path - self.best
        return np.sum(away @ self.F.H * away, -1) / 2

    def gamma(self) -> float:
        """Return Γ: how much worse the best common model is than the best model of each client."""
        apart = [self.best - q.minimum() for q in self.problems]
        return sum(p * x @ q.H @ x / 2 for p, q, x in zip(self.p, self.problems, apart, strict=True))

    def steepest(self, paths: np.ndarray) -> float:
        """Return G² at the start of rounds, averaged over paths. Full gradients with steps of at most 1/L lower it."""
        return float(max(np.sum((paths @ q.H - q.b) ** 2, -1).mean(0).max() for q in self.problems))


def convex(sizes: Sequence[int] = (1, 1, 1, 1), p: Sequence[float] = (0.25,) * 4) -> Convex:
    """Return least squares of clients that differ in curvature, directions and optima, with mu = 1.5 and L = 2."""
    rng, clients = np.random.default_rng(2), {}
    directions = np.array([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]])
    for i, copies in enumerate(sizes):
        turn = np.linalg.qr(rng.normal(size=(3, 3))).Q
        x = directions * np.sqrt([0.75, 0.75 + i / 12, 1]) @ turn
        y = 2 * directions @ turn @ rng.normal(size=3) + 0.5 * rng.normal(size=4)
        x, y = np.tile(x, (copies, 1)), np.tile(y, copies)
        clients[f"c{i}"] = (x, y, x, y)
    federation = Federation.from_arrays(clients, regression=True)
    return Convex(federation, lab.quadratics(ref.setup(FedDecay(), federation, LogReg())), p)


def rates(mu: float, L: float, factors: Sequence[float]) -> tuple[dict[str, float], float]:
    """Return α_j = c / (j + d) of the theorem as settings of the method, and d."""
    d = max(12 * L / mu / factors[-1], 4 - 2 / len(factors))
    return {"eta": 3 / (mu * factors[-1]) / d, "eta_decay": 1 / d}, d


def after_a_round(curvatures: Sequence[float], start: Sequence[float], **options) -> tuple[Convex, float]:
    """Return (problem Σ λ_j w_j² / 2 of one client, loss of its model after one step)."""
    x = np.diag(np.sqrt(np.array(curvatures) * len(curvatures) / 2))
    clients = {"c0": (x, np.zeros(len(x)), x, np.zeros(len(x)))}
    net = nn.Sequential(nn.Flatten(), nn.Linear(len(x), 1, bias=False))
    with torch.no_grad():
        net[1].weight.copy_(torch.tensor([start]))
    federation = Federation.from_arrays(clients, regression=True)
    setup = ref.setup(FedDecay(tau=1, **options), federation, Own(net=net, head_name="1"))
    _, shared, _ = next(lab.play(setup, 1))
    problem = Convex(federation, [lab.Quadratic(np.diag(curvatures), np.zeros(len(x)))], [1.0])
    return problem, float(problem.gap(shared["1.weight"].numpy())[0])


def over_cohorts(method: Method, problem: Convex, w: np.ndarray, r: int) -> np.ndarray:
    """Return where a round from w leads, for each cohort of r clients."""
    setup = ref.setup(method, problem.federation, LogReg())
    shared = {"head.weight": torch.tensor(w[None, :-1]), "head.bias": torch.tensor(w[-1:])}
    cohorts = itertools.combinations(range(len(problem.problems)), r)
    ends = (ref.play(setup, shared, {}, ref.store(setup), list(S), ref.announced(setup, r)).shared for S in cohorts)
    return np.array([lab.vector(end, names=lab.LINEAR) for end in ends])
