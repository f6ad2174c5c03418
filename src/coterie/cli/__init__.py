"""The commands."""

from coterie.cli.app import app, main

__all__ = ["app", "main"]
