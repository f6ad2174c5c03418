"""Settings of the machine, made once before a run."""

import ctypes
import os
from contextlib import suppress

import torch

from coterie.errors import UserError

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
"""Constants of glibc's malloc.h."""
THREADS_PER_CPU = 4
"""Maximum number of threads per CPU. More of them only wait for each other."""
KEPT = 64 << 20
"""Bytes above which freed blocks go back to the system: blocks of unequal sizes would fragment the heap."""


def set_up(threads: int, device: torch.device = torch.device("cpu"), deterministic: bool = True) -> None:  # noqa: B008
    """Set the number of threads (0: PyTorch's choice), and keep freed memory for the next round.

    Otherwise glibc returns blocks of a cohort's size to the system at once, and every round pays for each page again.
    On CUDA, `deterministic` chooses between the same bits in every run, and speed. Call it before the device is used.
    """
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic only with this
        torch.use_deterministic_algorithms(deterministic, warn_only=True)
        torch.backends.cudnn.deterministic = deterministic
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = not deterministic
    check_threads(f"engine.threads = {threads}", threads)
    if threads:
        torch.set_num_threads(threads)
    with suppress(OSError, AttributeError):  # another C library, with its own settings
        malloc = ctypes.CDLL("libc.so.6")
        malloc.mallopt(M_MMAP_THRESHOLD, KEPT)
        malloc.mallopt(M_TRIM_THRESHOLD, 1 << 30)
        malloc.mallopt(M_ARENA_MAX, 1)  # the memory of other threads would go back to the system whatever is set here


def check_threads(setting: str, threads: int) -> None:
    """Raise UserError if a setting asks for more threads than this machine can use."""
    cpus = os.cpu_count() or 1
    if threads > (most := THREADS_PER_CPU * cpus):
        raise UserError(
            f"{setting} is more than {most}, which is {THREADS_PER_CPU} times the {cpus} CPUs of this machine; lower "
            "it, or set it to 0 to have the number chosen"
        )
