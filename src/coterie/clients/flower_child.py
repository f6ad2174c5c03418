"""A process that ends as soon as its parent does, and loads little. Run as a script, with `python -I`.

    flower_child.py PARENT (MODULE | superlink) ARGUMENTS

PARENT is the process that starts this one. MODULE is one of this folder. It runs in this process, so that there is no
process in between. The package `coterie` is an empty one here: its own start, which loads PyTorch, does not take place.
"""

import ctypes
import os
import runpy
import signal
import sys
import threading
import time
from pathlib import Path
from types import ModuleType

PR_SET_PDEATHSIG = 1


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


def make_empty_package() -> None:
    """Let modules of Coterie be imported without the start of the package."""
    package = ModuleType("coterie")
    package.__path__ = [str(Path(__file__).parents[1])]
    sys.modules["coterie"] = package


def main() -> None:
    """Run a module of this folder, or Flower's SuperLink."""
    parent, target = int(sys.argv[1]), sys.argv[2]
    end_with(parent)
    sys.argv[:] = sys.argv[2:]
    if target == "superlink":
        from flwr.superlink.cli import flower_superlink

        flower_superlink()
    else:
        make_empty_package()
        runpy.run_module(target, run_name="__main__")


if __name__ == "__main__":
    main()
