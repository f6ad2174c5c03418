"""Tests on real data sets, which are read from the folder named by COTERIE_DATA."""

import os
from pathlib import Path

import pytest


def need(folder: str) -> None:
    """Skip the test if that folder does not exist."""
    root = os.environ.get("COTERIE_DATA")
    if not root or not (Path(root) / folder).is_dir():
        pytest.skip(f"set COTERIE_DATA to a folder that holds {folder}/")
