"""Counter-based randomness: every draw is a function of (seed, purpose, round, client), never of what was drawn before.

So the same recipe gives the same numbers whatever the engine, the number of workers, or the round a run resumes at.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor


def key(seed: int, purpose: str, index: int = 0, client: str = "") -> int:
    """The 63-bit name of a stream; `index` is the round."""
    text = "\0".join((str(seed), purpose, str(index), client))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def generator(seed: int, purpose: str, index: int = 0, client: str = "") -> np.random.Generator:
    """NumPy's Philox generator at the start of a stream."""
    return np.random.Generator(np.random.Philox(key=key(seed, purpose, index, client)))


@contextmanager
def torch_seeded(stream: int) -> Iterator[None]:
    """Inside, torch's global generators are at the start of a stream; outside, they are left as they were."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        with torch.random.fork_rng():
            torch.manual_seed(stream)
            yield
        return
    before = torch.get_rng_state()  # what fork_rng does, but in microseconds: heads of new clients are drawn so
    torch.default_generator.manual_seed(stream)
    try:
        yield
    finally:
        torch.set_rng_state(before)


def bits(stream: Tensor, *counters: Tensor) -> Tensor:
    """62 random bits for each element of the broadcast counters, as tensors, so that it also runs under vmap.

    The finalizer of SplitMix64 (Steele, Lea and Flood, 2014), applied once for each counter.
    """
    state = stream
    for counter in counters:
        state = _mix(state + (counter + 1) * _GOLDEN)
    return state & ((1 << 62) - 1)


_GOLDEN = -7046029254386353131  # 2^64 / golden ratio, as int64; likewise the two multipliers below


def _mix(z: Tensor) -> Tensor:
    z = (z ^ _logical_shift(z, 30)) * -4658895280553007687
    z = (z ^ _logical_shift(z, 27)) * -7723592293110705685
    return z ^ _logical_shift(z, 31)


def _logical_shift(z: Tensor, by: int) -> Tensor:
    return (z >> by) & ((1 << (64 - by)) - 1)
