"""The verbs that methods share: local steps of a client, steps of a server."""

from coterie.core.steps.batches import Turn, epoch_steps, minibatch, num_steps, turns
from coterie.core.steps.head import (
    SMOOTHNESS_PRODUCTS,
    around_features,
    gauge,
    gauged,
    head_descent,
    head_smoothness,
    rate_remarks,
)
from coterie.core.steps.local import (
    Pull,
    fine_tuned,
    gradient,
    local_gradient,
    local_sgd,
    sgd_passes,
    travelling,
    weighted_loss,
)
from coterie.core.steps.server import (
    Users,
    adam,
    adam_memory,
    adaptive_move,
    moments,
    server_move,
    server_step,
    shares,
)

__all__ = [
    "SMOOTHNESS_PRODUCTS",
    "Pull",
    "Turn",
    "Users",
    "adam",
    "adam_memory",
    "adaptive_move",
    "around_features",
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
    "moments",
    "num_steps",
    "rate_remarks",
    "server_move",
    "server_step",
    "sgd_passes",
    "shares",
    "travelling",
    "turns",
    "weighted_loss",
]
