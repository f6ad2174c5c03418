"""Functions that methods share: local steps of a client, work on the head, steps of the server."""

from coterie.core.steps.adaptive import local_adam
from coterie.core.steps.batches import epoch_steps, minibatch, num_steps, turns
from coterie.core.steps.head import (
    SMOOTHNESS_PRODUCTS,
    gauge,
    gauged,
    head_descent,
    head_gradient,
    head_loss,
    head_smoothness,
    penalized,
    penalized_loss,
    rate_notes,
)
from coterie.core.steps.local import (
    Pull,
    fine_tuned,
    gradient,
    local_gradient,
    local_sgd,
    sgd_reply,
    travelling,
    weighted_loss,
)
from coterie.core.steps.rates import LocalRates, local_factors, local_rates
from coterie.core.steps.server import (
    adam_memory,
    adaptive_memory,
    server_move,
    server_step,
    server_sum,
    unbiased_shares,
)

__all__ = [
    "SMOOTHNESS_PRODUCTS",
    "LocalRates",
    "Pull",
    "adam_memory",
    "adaptive_memory",
    "epoch_steps",
    "fine_tuned",
    "gauge",
    "gauged",
    "gradient",
    "head_descent",
    "head_gradient",
    "head_loss",
    "head_smoothness",
    "local_adam",
    "local_factors",
    "local_gradient",
    "local_rates",
    "local_sgd",
    "minibatch",
    "num_steps",
    "penalized",
    "penalized_loss",
    "rate_notes",
    "server_move",
    "server_step",
    "server_sum",
    "sgd_reply",
    "travelling",
    "turns",
    "unbiased_shares",
    "weighted_loss",
]
