"""A disk without space. A small file system in memory is full for everyone, also for root."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk of 16 MB, of which the page of a run needs several."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip("this test needs the right to mount a file system")
    yield folder
    subprocess.run(["umount", folder], check=True)


def fill(folder: Path) -> Path:
    """Fill a disk, and return the file to delete."""
    ballast = folder / "ballast"
    with ballast.open("wb") as file:
        while True:
            try:
                os.write(file.fileno(), bytes(4096))
            except OSError:
                return ballast
