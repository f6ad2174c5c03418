"""Functions that methods share: local steps of a client, work on the head, steps of the server."""

from coterie.core.steps.batches import epoch_steps, minibatch, num_steps, turns
from coterie.core.steps.head import (
    SMOOTHNESS_PRODUCTS,
    gauge,
    gauged,
    head_descent,
    head_smoothness,
    rate_notes,
)
from coterie.core.steps.local import (
    Loss,
    Pull,
    clipped,
    fine_tuned,
    gradient,
    local_gradient,
    local_sgd,
    sgd_reply,
    travelling,
    weighted_loss,
)
from coterie.core.steps.server import adam_memory, adaptive_memory, server_move, server_step

__all__ = [
    "SMOOTHNESS_PRODUCTS",
    "Loss",
    "Pull",
    "adam_memory",
    "adaptive_memory",
    "clipped",
    "epoch_steps",
    "fine_tuned",
    "gauge",
    "gauged",
    "gradient",
    "head_descent",
    "head_smoothness",
    "local_gradient",
    "local_sgd",
    "minibatch",
    "num_steps",
    "rate_notes",
    "server_move",
    "server_step",
    "sgd_reply",
    "travelling",
    "turns",
    "weighted_loss",
]
