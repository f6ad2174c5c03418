"""The version of Flower that real sites need, and the settings that keep it off the internet, without importing it."""

import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from coterie.errors import UserError

FLOWER = "1.41.0"
"""The version whose internals are used here. Another one may need changes in `clients/flower_*.py`."""


def check() -> None:
    """Raise `UserError` unless this version of Flower is installed."""
    try:
        found = version("flwr")
    except PackageNotFoundError:
        raise UserError("real sites need Flower: pip install 'coterie[flower]'") from None
    if found != FLOWER:
        raise UserError(f"real sites need Flower {FLOWER}, but {found} is installed: pip install 'coterie[flower]'")


def environment(home: Path) -> dict[str, str]:
    """Return the environment of a Flower process: nothing is fetched, reported or installed, and files go to `home`."""
    return {
        **os.environ,
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_LOG_LEVEL": "WARNING",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
