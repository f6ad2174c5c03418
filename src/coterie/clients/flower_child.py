"""A process that ends as soon as its parent does. Run as a script, with `python -I`, and without Coterie.

    flower_child.py PARENT (SCRIPT.py | superlink) ARGUMENTS

PARENT is the process that starts this one. The script runs in this process, so that no process in between has to be
ended as well.
"""

import ctypes
import os
import runpy
import signal
import sys
import threading
import time

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


def main() -> None:
    """Run a script, or Flower's SuperLink."""
    parent, target = int(sys.argv[1]), sys.argv[2]
    end_with(parent)
    sys.argv[:] = sys.argv[2:]
    if target == "superlink":
        from flwr.superlink.cli import flower_superlink

        flower_superlink()
    else:
        runpy.run_path(target, run_name="__main__")


if __name__ == "__main__":
    main()
