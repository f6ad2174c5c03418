"""The command line in forked children of a process that has imported everything: a command takes tenths of a second."""

import contextlib
import io
import logging
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from coterie import cli

TRACEBACK = 99
"""Exit code of a child whose command ended with an exception."""


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    """Exit code; negative after a signal."""
    output: str
    seconds: float


def command(*arguments: object, kill_after: float | None = None, before: Callable[[], object] = lambda: None) -> Ended:
    """Run a command in a child process.

    Args:
        arguments: of the command, without the name of the program.
        kill_after: seconds after which it is killed, if it is still running.
        before: function that the child calls first.
    """
    with tempfile.TemporaryFile() as file:
        start = time.monotonic()
        child = os.fork()
        if child == 0:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            os._exit(_main([str(argument) for argument in arguments], before))
        if kill_after is not None:
            while not (there := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < start + kill_after:
                time.sleep(0.0005)
            if not there[0]:
                os.kill(child, signal.SIGKILL)
        else:
            there = (0, 0)
        status = there[1] if there[0] else os.waitpid(child, 0)[1]
        file.seek(0)
        output = file.read().decode(errors="replace")
        return Ended(os.waitstatus_to_exitcode(status), output, time.monotonic() - start)


def _main(arguments: list[str], before: Callable[[], object]) -> int:
    """Run the command line in this process, with a clock that stands still, so that equal runs have equal files."""
    os.environ["COLUMNS"] = "200"
    sys.stdout, sys.stderr = (io.TextIOWrapper(os.fdopen(number, "wb"), write_through=True) for number in (1, 2))
    sys.argv = ["coterie", *arguments]
    time.perf_counter = lambda: 0.0
    try:
        before()
        cli.main()
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
        return TRACEBACK
    return 0


def here(*arguments: object) -> None:
    """Run a command in this process, which imports all that it needs."""
    before, handlers = sys.argv, logging.getLogger("coterie").handlers[:]
    sys.argv = ["coterie", *map(str, arguments)]
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            cli.main()
    except SystemExit as stop:
        if stop.code:
            raise RuntimeError(f"exit code {stop.code}: {arguments}") from None
    finally:
        sys.argv = before
        logging.getLogger("coterie").handlers[:] = handlers


def last_line(output: str) -> str:
    """Return the last line of what a command printed."""
    lines = [line for line in output.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "(no output)"


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
