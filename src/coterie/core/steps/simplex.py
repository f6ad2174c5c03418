"""Quadratic programmes on the simplex."""

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor

TIE = 1e-12
"""Curvature, relative to the largest one, by which weights are preferred that are spread evenly."""


def least_on_simplex(P: Tensor) -> Tensor:
    """Return the weights a >= 0 with sum one that minimize aᵀPa, for a positive semidefinite P (r, r).

    With P = BᵀB this is a non-negative least squares problem, which an active-set method solves exactly (Lawson and
    Hanson, 1974): minimize ||B b||² + (Σ b - 1)² over b >= 0. On the ray b = s a, the best s leaves q / (1 + q), with
    q = aᵀPa. So b is a multiple of the weights. Of several solutions, the most even one is returned.
    """
    own = P.detach().cpu().to(torch.float64).numpy()
    scale = max(np.diagonal(own).max(), np.finfo(np.float64).tiny)
    curvatures, axes = np.linalg.eigh(own / scale + TIE * np.eye(len(own)))
    B = np.sqrt(curvatures.clip(min=0))[:, None] * axes.T
    b, _ = nnls(np.vstack([B, np.ones(len(own))]), np.append(np.zeros(len(own)), 1.0))
    return torch.from_numpy(b / b.sum()).to(P)
