"""A linear net with a random representation, and its gradients by hand in NumPy.

Shapes: N examples with 4 inputs, representations of 3 numbers, 5 classes.
"""

from typing import Any

import numpy as np
import torch
from torch import nn

import reference as ref
from coterie.core.gaussian import Gaussian
from coterie.core.method import Data, Method
from coterie.core.steps import minibatch
from coterie.models.module import Own
from coterie.streams import torch_seeded

LATENT = 3
BODY = ("0.weight", "0.bias")
HEAD = ("1.1.weight", "1.1.bias")
Arrays = ref.Arrays


def model(**options: Any) -> Own:
    """Return the net: 4 inputs, mean and deviation of 3 numbers, 5 outputs."""
    with torch_seeded(0):
        net = nn.Sequential(nn.Linear(4, 2 * LATENT), nn.Sequential(Gaussian(), nn.Linear(LATENT, 5)))
    return Own(net=net, head_name="1", **options)


def setup(method: Method, sizes: tuple[int, ...] = (5, 3, 8, 1), **options: Any) -> ref.Game:
    return ref.setup(method, ref.federation(sizes), model(**options))


def softplus(value: np.ndarray) -> np.ndarray:
    return np.log1p(np.exp(value))


def sigmoid(value: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-value))


def noise(seed: int, shapes: list[tuple[int, int]]) -> list[np.ndarray]:
    """Return what torch draws one after another in these shapes."""
    with torch_seeded(seed):
        return [torch.randn(shape, dtype=torch.float64).numpy() for shape in shapes]


def encode(params: Arrays, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (mu, sigma, raw)."""
    features = x @ params["0.weight"].T + params["0.bias"]
    mu, raw = features[:, :LATENT], features[:, LATENT:]
    return mu, softplus(raw), raw


def classify(params: Arrays, z: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray, Arrays]:
    """Return the mean loss of the head at z, its gradient over z, and that over the head."""
    scores = z @ params["1.1.weight"].T + params["1.1.bias"]
    p = np.exp(scores - scores.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    loss = -np.log(p[np.arange(len(y)), y]).mean()
    error = (p - np.eye(5)[y]) / len(y)
    return float(loss), error @ params["1.1.weight"], {"1.1.weight": error.T @ z, "1.1.bias": error.sum(0)}


def through_body(x: np.ndarray, raw: np.ndarray, g_mu: np.ndarray, g_sigma: np.ndarray) -> Arrays:
    """Return the gradient over the body, from those over mu and sigma."""
    g = np.concatenate([g_mu, g_sigma * sigmoid(raw)], axis=1)
    return {"0.weight": g.T @ x, "0.bias": g.sum(0)}


def batches(data: Data, size: int, steps: int) -> list[tuple[np.ndarray, np.ndarray]]:
    parts = [minibatch(data, size, step) for step in range(steps)]
    return [(part.x.numpy(), part.y.numpy()) for part in parts]


def limited(gradient: Arrays, limit: float) -> Arrays:
    norm = np.sqrt(sum((value**2).sum() for value in gradient.values()))
    return {name: min(1, limit / norm) * value for name, value in gradient.items()} if limit else gradient


def moved(params: Arrays, gradient: Arrays, rate: float) -> Arrays:
    return {name: value - rate * gradient[name] if name in gradient else value for name, value in params.items()}
