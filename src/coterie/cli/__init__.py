"""The command line: `coterie run`, `coterie sweep` and the other commands."""

import signal
import sys
from typing import Any


def main() -> None:
    """Run the command line. A signal that arrives before there is anything to save ends the program at once."""
    received: list[int] = []

    def leave(number: int, _: Any) -> None:
        received.append(number)
        for each in before:
            signal.signal(each, signal.SIG_DFL)  # the next one need not wait for anything
        sys.exit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        from coterie.cli.app import run_app  # imports take a while

        run_app()
    except BaseException:
        if received:  # an import that is interrupted may fail with any exception
            sys.stderr.write("\nStopped before training began. Run the same command again.\n")
            sys.exit(128 + received[0])
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
