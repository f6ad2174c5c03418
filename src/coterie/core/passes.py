"""The cost of a local update, declared in passes through the body and the head."""

from typing import NamedTuple

from coterie.settings import Epochs


class Passes(NamedTuple):
    """Cost of one local update for one client, in passes over a batch. `measure.probe` turns it into operations."""

    batch: float
    """Mean number of examples per pass."""
    body_forwards: int
    body_backwards: int
    head_steps: int
    """Forward and backward passes through the head, with the gradient over its parameters."""
    frozen_head: int = 0
    """Forward and backward passes through the head, without the gradient over its parameters."""
    head_forwards: int = 0
    feature_products: int = 0
    """Products of all features with one vector, for a linear head."""
    whole_forwards: int = 0
    """Forward passes through the whole model over all examples of the client, whatever the batch size."""
    hessian_products: int = 0
    """Products of the Hessian with a vector. Each takes one forward and two backward passes through the model."""


def sgd_passes(size: int, steps: int, batch: int = 0, *, each: int = 1) -> Passes:
    """Return the cost of local SGD on all parameters, for a client with `size` examples.

    Args:
        size: number of training examples of the client.
        steps: number of local steps, or Epochs.
        batch: examples per step; 0 means all.
        each: number of gradients per step.
    """
    batch = min(batch, size) or size
    epoch = -(-size // batch)  # number of steps
    taken = steps * epoch if isinstance(steps, Epochs) else int(steps)
    epochs, rest = divmod(taken, epoch)
    examples = epochs * size + min(rest * batch, size)  # the last batch of an epoch may be short
    gradients = each * taken
    return Passes(examples / max(1, taken), body_forwards=gradients, body_backwards=gradients, head_steps=gradients)
