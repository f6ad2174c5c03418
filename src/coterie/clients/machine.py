"""What is asked of the machine, once, before a run."""

import ctypes
from contextlib import suppress

import torch

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""As in glibc's malloc.h."""
KEPT = 64 << 20
"""Bytes; larger blocks are given back: being of unequal sizes, they would leave the heap in pieces."""


def settle(threads: int) -> None:
    """So many threads an operation (0: PyTorch's choice), and freed memory is kept for the next round.

    Otherwise glibc hands blocks of a cohort's size back to the system at once, and every round pays for each page.
    """
    if threads:
        torch.set_num_threads(threads)
    with suppress(OSError, AttributeError):  # another C library, which has its own ways
        malloc = ctypes.CDLL("libc.so.6")
        malloc.mallopt(M_MMAP_THRESHOLD, KEPT)
        malloc.mallopt(M_TRIM_THRESHOLD, 1 << 30)
