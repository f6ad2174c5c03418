"""Where real data sets are tested: in the folder that COTERIE_DATA names."""

import os
from pathlib import Path

import pytest


def need(folder: str) -> None:
    """Skips the test where that folder is not there."""
    root = os.environ.get("COTERIE_DATA")
    if not root or not (Path(root) / folder).is_dir():
        pytest.skip(f"set COTERIE_DATA to a folder that holds {folder}/")
