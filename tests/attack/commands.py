"""Campaign `commands`: wrong command lines. Each ends with a message, never with a traceback.

The exit code is 2, or 1 if the operating system refuses something.
"""

import os
from functools import cache
from pathlib import Path

from attack.campaign import Campaign, Escape
from attack.children import TRACEBACK, command, last_line
from attack.folders import SMALL, unbroken, warm_up

RUN = ["run", "digits"]
BIG = "9" * 30
VALUES = {
    "run.rounds": ("-1", "1.5", "nan", "many", "[1]", "true", '""', "1e400", "-" + BIG, "0x"),
    "run.seed": ("-1", "a", "1.5", "[]", "9" * 5000),
    "run.clients_per_round": ("-1", "0", "1000000", "a", "0.5"),
    "run.participation": ("none", "1", "[]", "\u00e4"),
    "run.eval_every": ("0", "-3", "often"),
    "run.checkpoint_every": ("0", "-1", "inf"),
    "run.eval_last": ("-1", "x"),
    "data.name": ("nothing", "1", "digits2", '""', "../digits", "\u202e", "[]"),
    "partition.name": ("nothing", "3", '""'),
    "partition.clients": ("0", "-4", "1.5", "a", "nan", "10000000"),
    "partition.classes_per_client": ("0", "-1", "99", "x"),
    "partition.new_users": ("-0.1", "1.0", "2", "nan", "a", "inf"),
    "partition.validation": ("1.0", "-1", "nan"),
    "model.name": ("nothing", "7", "[]"),
    "model.hidden": ("0", "[0]", "[-1]", '["a"]', "[1.5]", "x", "[[1]]"),
    "model.labels": ("some", "1"),
    "method.name": ("nothing", "PFLEGOO", "0", '""'),
    "method.tau": ("0", "-1", "1.5", "epochs", "0 epochs", "[]", "-2 epochs", "nan epochs"),
    "method.beta": ("-1", "nan", "inf", "a", "[0.1]"),
    "method.server": ("none", "1"),
    "aggregate.name": ("nothing", "1"),
    "engine.kind": ("nothing", "1", "cuda"),
    "engine.dtype": ("float128", "int32", "1"),
    "engine.device": ("tpu", "1", "cuda:99"),
    "engine.threads": ("-1", "1000000", "a", "1.5"),
    "engine.memory": ("0", "-1", "nan", "a"),
    "eval.adapt_steps": ("-1", "a", "1.5", "nan epochs"),
    "eval.clients": ("-1", "a", "1.5"),
    "population.absent": ("-1", "1.5", "nan", "a"),
    "population.dropout": ("-0.5", "2", "x"),
    "population.schedule": ("1", "[1]", '[{round = 1, leave = ["nobody"]}]', '[{round = -1, join = ["0"]}]', "[{}]"),
}
"""Values that a setting cannot have."""
BROKEN = (
    "run.rounds",
    "=",
    "=3",
    "rounds=3",
    "run.=3",
    ".rounds=3",
    "run.rounds.x=3",
    "nothing.key=1",
    "run.nothing=1",
)
TEXTS = ("", " ", "\u00e4", "\U0001f600", "-", "--", "---", "run run", "\u202e", "A" * 5000)


@cache
def lines() -> tuple[tuple[str, ...], ...]:
    """Return all wrong command lines. RUN_FOLDER, NO_FOLDER, FILE and such are names in the current folder."""
    found: list[list[str]] = [[*RUN, "--set", f"{key}={value}"] for key, values in VALUES.items() for value in values]
    found += [[*RUN, "--set", text] for text in (*BROKEN, *TEXTS[:7])]
    found += [[text] for text in TEXTS if text not in ("-", "--")]
    found += [[word] for word in ("nothing", "runs", "RUN", "--nothing", "-x", "--set", "train", "help", "--versio")]
    found += [["run", text] for text in ("nothing", "missing.toml", "RUN_FOLDER", "EMPTY_FOLDER", "/", "/dev/null/x")]
    found += [["run", file] for file in ("broken.toml", "binary.toml", "list.toml", "unknown.toml", "deep.toml")]
    found += [["run", text] for text in TEXTS[2:4] + TEXTS[8:]]
    found += [
        ["run", "--resume", folder] for folder in ("NO_FOLDER", "EMPTY_FOLDER", "FILE", "/dev/null", "", "A" * 5000)
    ]
    found += [["run", "--resume", "RUN_FOLDER", *more] for more in (["--out", "other"], ["digits"], ["nothing"])]
    found += [
        ["run", "--resume", "RUN_FOLDER", "--set", change] for change in ("run.rounds=1", "run.seed=9", "method.tau=9")
    ]
    found += [["run", "--resume", "RUN_FOLDER", "--set", "method.name=nothing"], ["run", "--resume"], ["run", "--out"]]
    small = [part for setting in SMALL for part in ("--set", setting)]
    found += [
        ["run", *small, "--out", out] for out in ("RUN_FOLDER", "FILE", "FILE/x", "FULL_FOLDER", "/proc/x", "/dev/null")
    ]
    found += [["run", "--nothing"], ["run", "digits", "more"], ["run", "--json=3"], ["run", "--rounds", "3"]]
    found += [["run", "--set"], ["run", "digits", "--set", "run.rounds=1", "--set", "run.rounds=x"]]
    for listing in ("methods", "datasets", "partitions", "models", "settings", "recipes"):
        found += [[listing, "--nothing"], [listing, "nothing", "more", "arguments"]]
    found += [[listing, "nothing"] for listing in ("methods", "datasets", "partitions", "models")]
    found += [["data"], ["data", "nothing"], ["data", "fetch"], ["data", "fetch", "nothing"], ["data", "fetch", ""]]
    found += [["data", "show", "nothing"], ["data", "show", "--nothing"], ["data", "show", "missing.toml"]]
    found += [["data", "show", "digits", "--set", "partition.clients=0"], ["data", "show", "FILE"]]
    found += [["reproduce", text] for text in ("nothing", "missing.toml", "FILE", "EMPTY_FOLDER", "--nothing")]
    found += [["sweep", text] for text in ("nothing", "", "missing.toml", "FILE", "EMPTY_FOLDER", "--nothing")]
    found += [["sweep", "digits", "--trials", text] for text in ("0", "-1", "a", "1.5")]
    found += [["sweep", "digits"], ["sweep", "digits", "--set", "sweep.method.nothing=[1]"]]
    found += [["bench", text] for text in ("nothing", "--nothing", "--out")]
    return tuple(map(tuple, found))


def make_files(folder: Path) -> None:
    """Write the files that command lines name."""
    (folder / "RUN_FOLDER").symlink_to(unbroken("pflego", (3,), 1)[0])
    (folder / "EMPTY_FOLDER").mkdir()
    (folder / "FULL_FOLDER").mkdir()
    (folder / "FULL_FOLDER" / "mine.txt").write_text("not yours")
    (folder / "FILE").write_text("text")
    (folder / "broken.toml").write_text("[run\nrounds = 3")
    (folder / "binary.toml").write_bytes(bytes(range(256)))
    (folder / "list.toml").write_text("run = [1, 2]")
    (folder / "unknown.toml").write_text("[nothing]\nkey = 1")
    (folder / "deep.toml").write_text("a = " + "[" * 100_000)


def prepare() -> int:
    """Warm up and count the command lines."""
    warm_up()
    unbroken("pflego", (3,), 1)
    return len(lines())


def attempt(seed: int, folder: Path) -> str:
    """Run one wrong command line."""
    arguments = lines()[seed]
    make_files(folder)
    ended = command(*arguments, before=lambda: os.chdir(folder), kill_after=60)
    about = f"coterie {' '.join(map(repr, arguments))}"[:200]
    if ended.code == TRACEBACK or "Traceback (most recent call last)" in ended.output:
        raise Escape(f"{about}: traceback: {last_line(ended.output)[:200]}")
    stopped = ended.code == 1 and last_line(ended.output).startswith("stopped:")  # by the system, as by a full disk
    if ended.code != 2 and not stopped:
        how = "takes more than a minute" if ended.code == -9 else f"exit code {ended.code}"
        raise Escape(f"{about}: {how}: {last_line(ended.output)[:200]}")
    if not ended.output.strip():
        raise Escape(f"{about}: no message")
    return f"{about}: {last_line(ended.output)[:200]}"


CAMPAIGN = Campaign(
    "commands",
    "wrong command lines: a message, exit code 2 (1 if the system refuses something), and no traceback",
    attempt,
    prepare,
    1 << 31,
)
