"""The exceptions of this package."""


class UserError(ValueError):
    """Bad input. The message names the key or file and says what to do. Commands print it and exit with code 2."""


class DivergedError(RuntimeError):
    """Training has left the finite numbers."""


class ClientError(RuntimeError):
    """A method's function failed for a client. The message names the method, the stage and the client."""
