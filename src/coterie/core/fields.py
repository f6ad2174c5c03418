"""Types of hyper-parameters, with the description that `coterie methods NAME` shows.

A field with one of these types needs no docstring of its own. A docstring replaces the description.
"""

from typing import Annotated, Literal

from pydantic import Field

from coterie.core.schedule import Decay, DecayByBeta
from coterie.settings import Count, Length, Rate, Share, Size

__all__ = [
    "Adapts",
    "BatchSize",
    "Clip",
    "Count",
    "Decay",
    "DecayByBeta",
    "Length",
    "LocalRate",
    "LocalSteps",
    "Rate",
    "Regularizer",
    "ServerRate",
    "Share",
    "Size",
    "Users",
]

LocalSteps = Annotated[Length, Field(description='Number of local steps, or "2 epochs" of the client\'s examples.')]
LocalRate = Annotated[Rate, Field(description="Learning rate of the local steps.")]
ServerRate = Annotated[Rate, Field(description="Learning rate of the server's step.")]
BatchSize = Annotated[Size, Field(description="Examples per local step; 0 uses all examples of the client.")]
Clip = Annotated[
    Rate, Field(description="Maximum norm of a local gradient: a larger gradient is scaled down; 0 does not clip.")
]
Adapts = Annotated[
    Literal["model", "head"],
    Field(description='What a client trains when it adapts: the whole "model", or the "head" on a fixed body.'),
]
Regularizer = Annotated[Rate, Field(description="μ: L2 regularization of all parameters.")]
Users = Annotated[
    Literal["equal", "sizes"],
    Field(description='Weights of the clients in the average: "sizes" by number of examples, or "equal".'),
]
