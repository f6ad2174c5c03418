"""Counter-based random streams: every draw depends on (seed, purpose, round, client), never on earlier draws.

So a recipe gives the same numbers with any engine, any number of workers, and after a resume at any round.
"""

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def key(seed: int, purpose: str, index: int = 0, client: str = "") -> int:
    """Return the 63-bit key of a stream; `index` is the round."""
    return int(keys(seed, purpose, index, [client])[0])


def keys(seed: int, purpose: str, index: int, clients: Iterable[str]) -> NDArray[np.int64]:
    """Return the key of the stream of each client."""
    start = hashlib.blake2b(f"{seed}\0{purpose}\0{index}\0".encode(), digest_size=8)
    digests = []
    for client in clients:
        own = start.copy()
        own.update(client.encode())
        digests.append(own.digest())
    return (np.frombuffer(b"".join(digests), dtype="<u8") >> np.uint64(1)).astype(np.int64)


def generator(seed: int, purpose: str, index: int = 0, client: str = "") -> np.random.Generator:
    """Return NumPy's Philox generator at the start of a stream."""
    return np.random.Generator(np.random.Philox(key=key(seed, purpose, index, client)))


@contextmanager
def torch_seeded(stream: int) -> Iterator[None]:
    """Put torch's global generators at the start of a stream, and restore them afterwards."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        with torch.random.fork_rng([torch.cuda.current_device()]):
            torch.manual_seed(stream)
            yield
        return
    before = torch.get_rng_state()  # like fork_rng, but in microseconds: heads are drawn this way
    apple = torch.mps.get_rng_state() if _HAS_MPS else None
    torch.default_generator.manual_seed(stream)
    if apple is not None:
        torch.mps.manual_seed(stream)
    try:
        yield
    finally:
        torch.set_rng_state(before)
        if apple is not None:
            torch.mps.set_rng_state(apple)


_HAS_MPS = torch.backends.mps.is_available()


def bits(stream: Tensor, *counters: Tensor) -> Tensor:
    """Return 62 random bits for each element of the broadcast counters. It uses tensors only, so it runs under vmap.

    It applies the finalizer of SplitMix64 (Steele, Lea and Flood, 2014) once for each counter.
    """
    state = stream
    for counter in counters:
        state = _mix(state + (counter + 1) * _GOLDEN)
    return state & ((1 << 62) - 1)


_GOLDEN = -7046029254386353131  # 2^64 / golden ratio, as int64, like the two multipliers below


def _mix(z: Tensor) -> Tensor:
    z = (z ^ _logical_shift(z, 30)) * -4658895280553007687
    z = (z ^ _logical_shift(z, 27)) * -7723592293110705685
    return z ^ _logical_shift(z, 31)


def _logical_shift(z: Tensor, by: int) -> Tensor:
    return (z >> by) & ((1 << (64 - by)) - 1)
