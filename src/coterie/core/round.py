"""What the server announces, and what it knows of a client."""

from dataclasses import dataclass, replace

from coterie.settings import length


@dataclass(frozen=True)
class Round:
    """One round as announced by the server to its cohort."""

    index: int
    """1, 2, ..."""
    num_clients: int
    """I: all clients that may take part."""
    num_examples: int
    """N: the training examples of all of them together."""
    cohort_size: float
    """r: the *expected* size of the cohort given how it is drawn, so that a client takes part with probability r/I."""
    seed: int
    steps: int = 1
    """Local steps, or Epochs of them; set by the method's `plan`."""

    def announce(self, *, steps: int | str) -> "Round":
        return replace(self, steps=length(steps))


@dataclass(frozen=True)
class Client:
    """A client as its method sees it when it is first visited."""

    id: str
    num_outputs: int
    """K_i: the size of a head over the client's label space."""
    seed: int
    """The client's own stream for drawing its initial personal state."""
