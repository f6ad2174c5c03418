"""One thread a process: tests are many small operations, and the machine may be shared. No downloads either."""

import os
import tempfile

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["COTERIE_OFFLINE"] = "1"
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="coterie-tests-")  # as on a machine that has fetched nothing

import pytest


@pytest.fixture
def taped(monkeypatch):
    """Let autograd compute all local steps, so that methods of one formula agree to the bit.

    The closed form of dense layers rounds differently; tests/core/test_dense.py compares the two.
    """
    monkeypatch.setattr("coterie.core.steps.local.takes_dense_path", lambda *_: False)
