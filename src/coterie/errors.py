"""The exceptions of this package."""

from typing import Any


class UserError(ValueError):
    """Bad input. The message names the key or file and says what to do. Commands print it and exit with code 2."""


class DivergedError(RuntimeError):
    """Training has left the finite numbers."""


class StoppedError(RuntimeError):
    """A run that cannot continue now. Nothing is lost, and it can be resumed. The message says why."""


class ClientError(RuntimeError):
    """A method's function failed for a client. The message names the method, the stage and the client."""


class DiskError(RuntimeError):
    """A file of a run could not be written. The message names it and says how to continue."""

    run: Any = None
    """The run, if training itself had ended."""
