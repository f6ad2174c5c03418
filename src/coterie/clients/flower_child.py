"""A process that ends as soon as its parent does, and loads little. Run as a script, with `python -I`.

    flower_child.py PARENT (MODULE | superlink | coterie) ARGUMENTS

PARENT is the process that starts this one. MODULE is one of this folder. It runs in this process, so that there is no
process in between. The package `coterie` is an empty one then: its own start, which loads PyTorch, does not take place.
"""

import ctypes
import os
import runpy
import signal
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

PR_SET_PDEATHSIG = 1


LARGE = ("flwr", "flwr.supercore.interceptors", "flwr.supercore.interceptors.http")
"""Packages of Flower whose start imports much that a courier does not need, such as a web framework: 20 MB."""


def end_with(parent: int) -> None:
    """End this process when `parent` ends, for whatever reason.

    On Linux, the kernel does it, as soon as the thread that started this process has ended. Elsewhere, it takes up to
    half a second.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)


def make_empty(package: str, folder: Path) -> None:
    """Let modules of a package be imported without the start of the package."""
    module = ModuleType(package)
    module.__path__ = [str(folder)]
    sys.modules[package] = module


def make_empty_packages(target: str) -> None:
    """Keep PyTorch out of these processes, and from a courier what only servers of Flower need."""
    make_empty("coterie", Path(__file__).parents[1])
    if target.endswith("courier") and (found := find_spec("flwr")) is not None:
        (root,) = map(Path, found.submodule_search_locations or ())
        for package in LARGE:
            make_empty(package, root.joinpath(*package.split(".")[1:]))


def main() -> None:
    """Run a module of this folder, Flower's SuperLink, or a command of Coterie."""
    parent, target = int(sys.argv[1]), sys.argv[2]
    sys.argv[:] = sys.argv[2:]
    if target == "coterie":  # any thread may start it, and it need not end with that thread
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
        runpy.run_module(target, run_name="__main__")
        return
    end_with(parent)
    if target == "superlink":
        from flwr.superlink.cli import flower_superlink

        flower_superlink()
    else:
        make_empty_packages(target)
        runpy.run_module(target, run_name="__main__")


if __name__ == "__main__":
    main()
