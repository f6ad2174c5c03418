"""Methods on a fake accelerator. The tests of devices.py need a process of their own: they register a device."""

import subprocess
import sys
from pathlib import Path


def test_every_method_computes_on_its_device():
    """PyTorch starts a thread for each kind of device, and then no other test could fork."""
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(root / "tests/contract/devices.py")]
    ended = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=280)
    assert ended.returncode == 0, ended.stdout[-3000:]
