"""Small runs of several methods, and the comparison of two run folders."""

import json
import re
import tempfile
from functools import cache
from pathlib import Path

from attack.campaign import Escape
from attack.children import Ended, command, contents, here

METHODS = ("pflego", "fedavg", "ditto", "scafflix", "fedadam", "scaffold")
"""PFLEGO and FedAdam keep Adam's memory on the server, Scafflix prepares its clients, the others keep states."""
OWN = {"pflego": ["method.tau=2"], "fedavg": ["method.tau=2"], "ditto": ["method.tau=2"], "fedadam": ["method.tau=2"]}
SMALL = [
    *("data.name=synthetic", "data.clients=6", "data.examples=12", "data.features=4", "data.classes=3"),
    *("partition.name=natural", "partition.new_users=0.2", "model.name=mlp", "model.hidden=[3]"),
    *("run.clients_per_round=3", "run.eval_every=2", "eval.adapt_steps=1", "engine.threads=1"),
]
CLOCK = frozenset({"seconds", "eval_seconds", "scoring_seconds"})
ABOUT = frozenset({"commands.jsonl"})
"""Files that say when and by which commands a run was made."""


def settings(method: str, rounds: int, every: int) -> list[str]:
    """Return the arguments of a small run."""
    chosen = [*SMALL, f"method.name={method}", *OWN.get(method, []), f"run.rounds={rounds}"]
    return [part for setting in [*chosen, f"run.checkpoint_every={every}"] for part in ("--set", setting)]


@cache
def workspace() -> Path:
    """Return a folder for what all attempts share."""
    return Path(tempfile.mkdtemp(prefix="attack-"))


def warm_up() -> None:
    """Import everything that small runs need, by making two in this process."""
    for method in ("pflego", "scafflix"):
        out = workspace() / f"warm-{method}"
        if not out.exists():
            here("run", *settings(method, 1, 1), "--out", out)


@cache
def unbroken(method: str, phases: tuple[int, ...], every: int) -> tuple[Path, float]:
    """Return the folder of a run that nothing disturbed, and the seconds it took. Each phase is a number of rounds."""
    out = workspace() / f"unbroken-{method}-{'-'.join(map(str, phases))}-{every}"
    note = out.with_suffix(".seconds")
    if note.exists():
        return out, float(note.read_text())
    ended = command("run", *settings(method, phases[0], every), "--out", out)
    seconds = ended.seconds
    for rounds in phases[1:]:
        assert ended.code == 0, ended.output
        ended = command("run", "--resume", out, "--set", f"run.rounds={rounds}")
    assert ended.code == 0, ended.output
    note.write_text(str(seconds))
    return out, seconds


def continued(out: Path, start: list[str], rounds: int, kill_after: float | None = None) -> Ended:
    """Continue a run as a user would: resume it, or start it again if it had not begun."""
    if (out / "recipe.toml").exists():
        return command("run", "--resume", out, "--set", f"run.rounds={rounds}", kill_after=kill_after)
    return command("run", *start, "--out", out, kill_after=kill_after)


def finish(out: Path, start: list[str], rounds: int) -> Ended:
    """Continue a run to its end. Failing is an escape."""
    ended = continued(out, start, rounds)
    if ended.code != 0:
        raise Escape(f"cannot be continued, exit code {ended.code}: {ended.output[-400:].strip()}")
    return ended


def compare(out: Path, expected: Path) -> None:
    """Raise Escape unless both folders have the same files with the same contents, apart from clocks."""
    mine, other = (
        {name: _timeless(name, raw) for name, raw in contents(folder).items() if name not in ABOUT}
        for folder in (out, expected)
    )
    if different := [name for name in mine.keys() & other.keys() if mine[name] != other[name]]:
        raise Escape(f"{len(different)} files differ from an unbroken run: {_first(min(different), mine, other)}")
    if extra := sorted(mine.keys() - other.keys()):
        raise Escape(f"the folder has files that an unbroken run has not: {', '.join(extra[:4])}")
    if missing := sorted(other.keys() - mine.keys()):
        raise Escape(f"the folder lacks files of an unbroken run: {', '.join(missing[:4])}")


def _timeless(name: str, raw: bytes) -> bytes:
    """Return a file without the seconds that it records and the name of its folder."""
    if name.endswith((".json", ".jsonl", ".html")):
        raw = re.sub(rb'("(?:eval_|scoring_)?seconds": )[-+0-9.e]+', rb"\1 0", raw)
    if name in ("rounds.jsonl", "summary.json"):
        raw = re.sub(rb'"sha256": "[0-9a-f]{64}"', b"", raw)  # it covers the seconds, too
    return re.sub(rb"<title>.*?</h1>", b"", raw, flags=re.DOTALL) if name == "report.html" else raw


def _first(name: str, mine: dict[str, bytes], other: dict[str, bytes]) -> str:
    one, two = mine[name], other[name]
    place = next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))
    around = slice(max(0, place - 40), place + 20)
    return f"{name} at byte {place}: {json.dumps(one[around].decode(errors='replace'))}, not " + json.dumps(
        two[around].decode(errors="replace")
    )
