"""H: wall time of whole runs, from the command to its exit, over the seconds of their training rounds.

The rest is spent on starting Python and PyTorch, reading data, evaluation, the run folder and the page. Each run is a
process of its own.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.result import Figure, Result, ratio
from benchmarks.timing import Seconds

RUNS: dict[str, Sequence[str]] = {
    "pflego/fashion-mnist-high": ["pflego/fashion-mnist-high"],
    "digits, FedAvg": ["digits-fedavg"],
}
AT_MOST = {"pflego/fashion-mnist-high": 1.3}
REPEATS = 3


def measure(repeats: int) -> Result:
    """Time whole runs."""
    seconds: Seconds = {}
    notes = []
    for _ in range(min(repeats, REPEATS)):
        for name, arguments in RUNS.items():
            with tempfile.TemporaryDirectory() as folder:
                out = Path(folder) / "run"
                command = [sys.executable, "-m", "coterie", "run", *arguments, "--out", str(out), "--json"]
                start = time.perf_counter()
                ended = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
                wall = time.perf_counter() - start
                if ended.returncode:
                    notes.append(f"{name} was skipped: {ended.stderr.strip().splitlines()[-1]}")
                    continue
                cost = json.loads((out / "summary.json").read_text())["cost"]
            seconds.setdefault(f"{name}, wall time", []).append(wall)
            seconds.setdefault(f"{name}, training", []).append(cost["seconds"])
            seconds.setdefault(f"{name}, evaluation", []).append(cost["eval_seconds"])
    figures = [
        Figure(
            f"{name}: wall time / training",
            ratio(seconds, f"{name}, wall time", f"{name}, training"),
            AT_MOST.get(name),
        )
        for name in RUNS
        if f"{name}, training" in seconds
    ]
    return Result("H: whole runs", seconds, figures, sorted(set(notes)))
