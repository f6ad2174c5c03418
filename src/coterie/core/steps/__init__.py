"""Functions that methods share: local steps of a client, work on the head, steps of the server."""

from coterie.core.steps.batches import epoch_steps, minibatch, num_steps, turns
from coterie.core.steps.gaussian import (
    class_table,
    classes_of,
    distribution,
    loss_of_sample,
    loss_of_samples,
    mean_over_answers,
    sampled,
)
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
    "class_table",
    "classes_of",
    "clipped",
    "distribution",
    "epoch_steps",
    "fine_tuned",
    "gauge",
    "gauged",
    "gradient",
    "head_descent",
    "head_smoothness",
    "local_gradient",
    "local_sgd",
    "loss_of_sample",
    "loss_of_samples",
    "mean_over_answers",
    "minibatch",
    "num_steps",
    "rate_notes",
    "sampled",
    "server_move",
    "server_step",
    "sgd_reply",
    "travelling",
    "turns",
    "weighted_loss",
]
