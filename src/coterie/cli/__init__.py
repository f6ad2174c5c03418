"""The command line: `coterie run`, `coterie sweep` and the other commands."""

from coterie.cli.app import app, main

__all__ = ["app", "main"]
