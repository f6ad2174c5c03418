"""The one exception that is the user's to mend: its message names the key or file and says what to do."""


class UserError(ValueError):
    """Bad input. The commands print it in a line or two and exit with code 2."""


class DivergedError(RuntimeError):
    """Training has left the finite numbers."""
