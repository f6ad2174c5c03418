"""Small convex problems, and Algorithm 1 of Scafflix in NumPy as the paper writes it, divisions by alpha and all."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

import reference as ref
from coterie import Federation
from coterie.core.method import Method, Tree
from coterie.core.tree import within
from coterie.models.logreg import LogReg
from coterie.models.module import Own
from coterie.recipe import Recipe

Vector = np.ndarray
Gradient = Callable[[Vector], Vector]


class Played(NamedTuple):
    x: Vector
    h: list[Vector]


def scafflix(
    gradients: Sequence[Gradient],
    x: Vector,
    optima: Sequence[Vector],
    alpha: Sequence[float],
    gamma: Sequence[float],
    p: float,
    rounds: Iterable[tuple[int, Sequence[int]]],
) -> Played:
    """`rounds` has the local steps and the cohort of each. Where alpha is 1 this is Algorithm 2."""
    h = [np.zeros_like(x) for _ in gradients]
    for steps, cohort in rounds:
        own = dict.fromkeys(cohort, x)
        for i in cohort:
            for _ in range(steps):
                g = gradients[i](alpha[i] * own[i] + (1 - alpha[i]) * optima[i])
                own[i] = own[i] - gamma[i] / alpha[i] * (g - h[i])
        total = sum(alpha[i] ** 2 / gamma[i] for i in cohort)
        x = sum(alpha[i] ** 2 / gamma[i] * own[i] for i in cohort) / total
        for i in cohort:
            h[i] = h[i] + p * alpha[i] / gamma[i] * (x - own[i])
    return Played(x, h)


def vector(tree: Tree, label: str = "", names: Sequence[str] = ref.BODY + ref.HEAD) -> Vector:
    """Return a tree as one vector, or the part of it that is under a label."""
    own = within(label, tree) if label else tree
    return np.concatenate([own[name].detach().numpy().ravel() for name in names])


def net_gradients(setup: ref.Game, mu: float = 0.0) -> list[Gradient]:
    """Of the MLP of the reference, as functions of one vector."""
    start = ref.arrays(setup.task.initial)
    names = ref.BODY + ref.HEAD
    cuts = np.cumsum([start[name].size for name in names])[:-1]

    def of(client: int) -> Gradient:
        x, y = ref.examples(setup, client)

        def gradient(w: Vector) -> Vector:
            parts = [part.reshape(start[name].shape) for name, part in zip(names, np.split(w, cuts), strict=True)]
            _, g = ref.loss_and_gradient(dict(zip(names, parts, strict=True)), x, y)
            return np.concatenate([g[name].ravel() for name in names]) + mu * w

        return gradient

    return [of(client) for client in range(len(setup.federation.ids))]


class Quadratic(NamedTuple):
    """f(x) = ½ xᵀ H x - bᵀ x, up to a constant."""

    H: Vector
    b: Vector

    def gradient(self, x: Vector) -> Vector:
        return self.H @ x - self.b

    def minimum(self) -> Vector:
        return np.linalg.solve(self.H, self.b)


LINEAR = ("head.weight", "head.bias")


def quadratics(setup: ref.Game) -> list[Quadratic]:
    """Each client's f_i of linear regression, with the method's mu, from the data alone."""
    found = []
    for client in range(len(setup.federation.ids)):
        x, y = ref.examples(setup, client)
        A = np.column_stack([x, np.ones(len(x))])
        H = 2 * A.T @ A / len(x) + getattr(setup.method, "mu", 0.0) * np.eye(A.shape[1])
        found.append(Quadratic(H, 2 * A.T @ y / len(x)))
    return found


def ill_conditioned(method: Method, kappa: float) -> tuple[ref.Game, list[Quadratic]]:
    """Two clients with 2/kappa as the least curvature, along the same direction, and 2 as the largest, along others."""
    directions = np.array([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]])
    clients = {}
    for i, spectrum in enumerate(([1 / kappa, 1, kappa**-0.5], [1 / kappa, kappa**-0.5, 1])):
        x = directions * np.sqrt(spectrum)
        y = x @ np.array([[3.0, -1.0, 0.5], [1.0, 1.0, 2.0]])[i]
        clients[f"c{i}"] = (x, y, x, y)
    setup = ref.setup(method, Federation.from_arrays(clients, regression=True), LogReg())
    return setup, quadratics(setup)


def least_squares(method: Method, **options: float) -> tuple[ref.Game, list[Quadratic]]:
    """A game on the data set of that name, and each client's f_i, with the method's mu, from the data alone."""
    data = {"name": "least-squares", "clients": 3, "features": 4, "examples": 12, "noise": 0.5, **options}
    setup = ref.setup(method, Recipe.parse({"data": data}).federation(), LogReg())
    return setup, quadratics(setup)


def uneven(method: Method) -> tuple[ref.Game, list[Quadratic]]:
    """The same with inputs scaled by 1, 2 and 3: clients with different L_i."""
    setup, _ = least_squares(method)
    x = setup.federation.x.clone()
    for i in range(3):
        x[setup.federation.splits["train"].row(i)] *= 1 + i
    setup = ref.setup(method, replace(setup.federation, x=x), LogReg())
    return setup, quadratics(setup)


def flix_solution(problems: Sequence[Quadratic], alpha: Sequence[float]) -> Vector:
    """x* of (FLIX): where Σ α_i ∇f_i(α_i x + (1 - α_i) x_i*) = 0."""
    H = sum(a**2 * q.H for q, a in zip(problems, alpha, strict=True))
    b = sum(a * (q.b - (1 - a) * q.H @ q.minimum()) for q, a in zip(problems, alpha, strict=True))
    return np.linalg.solve(H, b)


class Logistic(NamedTuple):
    """f(v) = (1/N) Σ log(1 + exp(-b_j vᵀ a_j)) + (mu/2) ||v||², as in section 3.1 of the paper."""

    A: Vector
    b: Vector
    mu: float

    def value(self, v: Vector) -> float:
        return float(np.logaddexp(0, -self.b * (self.A @ v)).mean() + self.mu / 2 * v @ v)

    def gradient(self, v: Vector) -> Vector:
        wrong = (1 - np.tanh(self.b * (self.A @ v) / 2)) / 2  # 1 / (1 + exp), without its overflow
        return -(self.A.T @ (self.b * wrong)) / len(self.b) + self.mu * v

    def hessian(self, v: Vector) -> Vector:
        bend = 1 / (4 * np.cosh(self.A @ v / 2) ** 2)
        return self.A.T @ (bend[:, None] * self.A) / len(self.b) + self.mu * np.eye(len(v))

    def L(self) -> float:
        return float(np.linalg.eigvalsh(self.A.T @ self.A)[-1] / (4 * len(self.b)) + self.mu)

    def minimum(self) -> Vector:
        v = np.zeros(self.A.shape[1])
        for _ in range(50):
            v = v - np.linalg.solve(self.hessian(v), self.gradient(v))
        return v


def logistic(
    method: Method, mu: float, start: float = 1.0, sizes: Sequence[int] = (9, 14, 6)
) -> tuple[ref.Game, list[Logistic]]:
    """Two classes with one weight vector v, as two outputs ∓v/2: the method has to have 2 mu."""
    rng = np.random.default_rng(5)
    clients = {}
    for i, size in enumerate(sizes):
        x = rng.normal(size=(size, 3)) * (1 + i) + rng.normal(size=3)
        y = (np.arange(size) % 2).astype(np.int64)
        clients[f"c{i}"] = (x, y, x, y)
    net = nn.Sequential(nn.Flatten(), nn.Linear(3, 2))
    with torch.no_grad():
        for value in net[1].parameters():
            value.copy_(torch.tensor([-start / 2, start / 2]).reshape(2, *[1] * (value.ndim - 1)).expand_as(value))
    setup = ref.setup(method, Federation.from_arrays(clients), Own(net=net, head_name="1"))
    problems = [Logistic(np.column_stack([x, np.ones(len(x))]), 2.0 * y - 1, mu) for x, y, _, _ in clients.values()]
    return setup, problems


def one_vector(tree: Tree, label: str = "") -> Vector:
    """v of two outputs."""
    own = within(label, tree) if label else tree
    weight, bias = own["1.weight"].numpy(), own["1.bias"].numpy()
    return np.append(weight[1] - weight[0], bias[1] - bias[0])


def play(setup: ref.Game, rounds: int, cohorts: Callable[[int], list[int]] | None = None):
    """Rounds of everyone, or of the cohorts: yields (round, shared, store) after each."""
    shared, store = setup.method.init_shared(setup.task), ref.store(setup)
    everyone = list(range(len(setup.federation.ids)))
    for index in range(1, rounds + 1):
        cohort = cohorts(index) if cohorts else everyone
        rnd = ref.announced(setup, len(cohort), index)
        shared = ref.play(setup, shared, {}, store, cohort, rnd).shared
        yield rnd, shared, store


def at_iterations(setup: ref.Game, wanted: Iterable[int]):
    """Yield (x̃_i, h_i) of all clients after these numbers of steps in total, also within a round."""
    wanted, everyone, done = sorted(wanted), range(len(setup.federation.ids)), 0
    shared, store = setup.method.init_shared(setup.task), ref.store(setup)
    for index in range(1, 10**6):
        rnd = ref.announced(setup, len(everyone), index)
        while wanted and wanted[0] < done + rnd.steps:
            models = []
            for i in everyone:
                model = setup.method.personal_params(setup.task, shared, store[i])
                if wanted[0] > done:
                    part, data = rnd.announce(steps=wanted[0] - done), setup.data(i, "train", index)
                    model = setup.method.local_update(setup.task, shared, store[i], data, part).personal
                models.append(vector(model, names=LINEAR))
            yield [(model, vector(store[i], "h", LINEAR)) for i, model in zip(everyone, models, strict=True)]
            wanted = wanted[1:]
        if not wanted:
            return
        shared = ref.play(setup, shared, {}, store, list(everyone), rnd).shared
        done += rnd.steps


def seeded(setup: ref.Game, seed: int) -> ref.Game:
    """Return the game with another seed."""
    return ref.Game(replace(setup.load, work=replace(setup.load.work, seed=seed)))


def lyapunov(states, models, gradients, gamma, p) -> float:
    """Return Ψ of equation 3."""
    apart = [np.sum((x - best) ** 2) / g for (x, _), best, g in zip(states, models, gamma, strict=True)]
    untold = [g * np.sum((h - slope) ** 2) for (_, h), slope, g in zip(states, gradients, gamma, strict=True)]
    return min(gamma) * (np.mean(apart) + np.mean(untold) / p**2)
