"""A long run of real sites in which something is killed all the time, and a long one in which nothing is.

    python tests/sites/soak.py [--rounds 30] [--every 20] [--apart 30] [--steady 100] [--out soak-results]

Each run has four sites with TLS on the loopback address. In the first one, a process is killed with SIGKILL every 20
seconds, or everything is, or a site is stopped for longer than the deadline of a round. What nothing starts again by
itself (the site process and the server loop) is started again here, as systemd does it. In the second run, the next
fault waits until the last one is overcome, which shows how long each one takes. The third run is left alone and shows
whether memory grows. OUT/table.md has the counts and the times of all that have ended. The command continues with the
next run if it is repeated.
"""

import argparse
import os
import random
import re
import shutil
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

if __name__ == "__main__":
    os.environ.setdefault("COTERIE_OFFLINE", "1")
    sys.path[0] = str(Path(__file__).parents[1])

import coterie
from coterie.measure.record import Record
from coterie.recipe import Recipe
from coterie.sites import sent
from coterie.sites.local import Local, last_words
from sites.deployment import assert_as_replayed, children, kill, local, recipe, rounds, written

DEADLINE = 30
OPTIONS = ("--deadline", str(DEADLINE), "--quorum", "0.5", "--wait", "300")
KINDS = ("site process", "courier", "gateway", "SuperLink", "server loop", "everything", "slow site")
ROLES = {"flower_courier": "courier", "flower_gateway": "gateway", "superlink": "SuperLink"}
PATIENCE = 1800.0
"""Seconds that a run may take."""


@dataclass
class Fault:
    """Something that was killed or stopped."""

    kind: str
    site: str | None
    at: float
    after: int
    """Number of rounds that were complete before."""
    recovered: float | None = None
    """Seconds until the next round was complete, with the site if it was one."""


@dataclass
class Memory:
    """The memory of each process over time, in MB."""

    seen: dict[tuple[str, int], list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))

    def look(self, made: Local) -> None:
        """Add what all processes use now."""
        mains = [("server loop", made.server), *(("site process", process) for process in made.sites.values())]
        for role, process in mains:
            if process is not None and process.poll() is None:
                self._add(role, process.pid)
                for pid, command in below(process.pid):
                    for word, name in ROLES.items():
                        if word in command:
                            self._add(name, pid)

    def _add(self, role: str, pid: int) -> None:
        try:
            found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        except (FileNotFoundError, ProcessLookupError):
            return
        if found:
            self.seen[role, pid].append((time.monotonic(), int(found[1]) / 1024))

    def rows(self) -> Iterator[tuple[str, float, float, float]]:
        """Yield, by role, the seconds of the oldest process, its memory after a third of its life, and at its end."""
        oldest: dict[str, list[tuple[float, float]]] = {}
        for (role, _), values in self.seen.items():
            if len(values) > len(oldest.get(role, [])):
                oldest[role] = values
        for role, values in sorted(oldest.items()):
            yield role, values[-1][0] - values[0][0], values[len(values) // 3][1], values[-1][1]


@dataclass
class Soak:
    """A run, the faults in it, and what became of each request."""

    faults: list[Fault]
    records: Sequence[Record]
    asked: Counter[str]
    """By outcome, the requests of all rounds."""
    sent: Counter[str]
    """By outcome, the replies that the sites have sent."""
    memory: Memory
    seconds: float


def below(pid: int) -> list[tuple[int, str]]:
    """Return the processes below a process, or nothing if it has just ended."""
    try:
        return children(pid)
    except (FileNotFoundError, ProcessLookupError):
        return []


def soak(folder: Path, number: int, every: float | None, apart: bool = False) -> Soak:
    """Play a run of some rounds. Every so many seconds, something is killed, if `apart` only after a recovery."""
    steps = 8000 if every else 50
    settings = recipe("pflego", number, tau=steps)
    settings = Recipe.parse({**settings.as_dict(), "run": {**settings.as_dict()["run"], "clients_per_round": None}})
    faults: list[Fault] = []
    memory, start, draw = Memory(), time.monotonic(), random.Random(0)
    with local(settings, folder, *OPTIONS) as made:
        assert made.server is not None
        stopped: list[tuple[str, float]] = []
        due, order = 0.0, shuffled(draw)
        while (code := made.server.poll()) != 0:
            assert code != 2, last_words(folder / "server.log")
            if code is not None:
                made.start_server(["--json", *OPTIONS])
            now = time.monotonic()
            assert now - start < PATIENCE, last_words(folder / "server.log")
            if rounds(made) and not due:
                due = now + (every or PATIENCE)
            look_at(made, faults)
            memory.look(made)
            for name, until in stopped:
                if now > until:
                    made.sites[name].send_signal(signal.SIGCONT)
                    stopped.remove((name, until))
            waits = apart and (stopped or not all(fault.recovered for fault in faults))
            if due and now >= due and not waits and rounds(made) < number - 1:
                faults.append(fault := Fault(next(order), None, now, rounds(made)))
                strike(made, fault, draw, stopped)
                due = time.monotonic() + (every or PATIENCE)
            time.sleep(0.2)
        look_at(made, faults)
        assert_as_replayed(made, settings)
        records = coterie.load(made.run).history
        return Soak(faults, records, *accounts(made, records), memory, time.monotonic() - start)


def shuffled(draw: random.Random) -> Iterator[str]:
    """Yield the kinds of faults for ever, each equally often."""
    while True:
        yield from draw.sample(KINDS, len(KINDS))


def strike(made: Local, fault: Fault, draw: random.Random, stopped: list[tuple[str, float]]) -> None:
    """Kill or stop something, and start again what nothing else does."""
    assert made.server is not None
    ids = list(made.federation.ids)
    if fault.kind in ("site process", "courier", "slow site"):
        fault.site = draw.choice([name for name in ids if name not in dict(stopped)])
    names = {"everything": ids, "site process": [fault.site]}.get(fault.kind, [])
    if fault.kind in ("everything", "server loop"):
        kill(made.server)
    for name in names:
        kill(made.sites[name])
        stopped[:] = [each for each in stopped if each[0] != name]
    if fault.kind in ("everything", "server loop"):
        made.start_server(["--json", *OPTIONS])
    for name in names:
        made.start_site(name)
    if fault.kind == "courier":
        kill(made.sites[fault.site], "flower_courier")
    if fault.kind in ("gateway", "SuperLink"):
        kill(made.server, fault.kind.lower())
    if fault.kind == "slow site":
        made.sites[fault.site].send_signal(signal.SIGSTOP)
        stopped.append((fault.site, time.monotonic() + DEADLINE + 5))


def look_at(made: Local, faults: list[Fault]) -> None:
    """Note for each fault when it was overcome."""
    for fault in faults:
        if fault.recovered is None:
            later = written(made.run / "rounds.jsonl")[fault.after :]
            if any(fault.site is None or fault.site in record.digests for record in later):
                fault.recovered = time.monotonic() - fault.at


def accounts(made: Local, records: Sequence[Record]) -> tuple[Counter[str], Counter[str]]:
    """Return what became of each request of a round, and of each reply that a site has sent."""
    asked: Counter[str] = Counter()
    accepted: set[tuple[str, str]] = set()
    for record in records:
        for name in record.cohort:
            assert (name in record.digests) != (name in record.refused), f"round {record.round}: {name}"
            asked[outcome(record.refused.get(name))] += 1
        accepted |= {(name, digest) for name, digest in record.digests.items()}
    replies: Counter[str] = Counter()
    for name in made.federation.ids:
        used = set()
        for each in sent.read(made.site(name)):
            if each.kind == "update":
                if (name, each.digest) in accepted:
                    replies["sent again" if each.digest in used else "accepted"] += 1
                    used.add(each.digest)
                else:
                    replies["not used"] += 1
        assert used == {digest for site, digest in accepted if site == name}, f"the log of {name} lacks a reply"
    return asked, replies


def outcome(reason: str | None) -> str:
    """Return the class of a reason why a reply was not used."""
    if reason is None:
        return "accepted"
    return {"no reply": "late", "not conn": "lost"}.get(reason[:8], "refused")


def counted(soak: Soak) -> Iterator[str]:
    """Yield what became of each request and each reply of a run, as Markdown."""
    yield f"{len(soak.records)} rounds, {len(soak.faults)} faults, {soak.seconds:.0f} s. The final state is that of a"
    yield "simulation of the accepted replies, bit for bit."
    yield "\n| requests of rounds | accepted | refused | late | lost |\n|---|---|---|---|---|"
    numbers = " | ".join(str(soak.asked[name]) for name in ("accepted", "refused", "late", "lost"))
    yield f"| {soak.asked.total()} | {numbers} |"
    yield "\n| replies that left a site | accepted | the same, sent again | not used |\n|---|---|---|---|"
    numbers = " | ".join(str(soak.sent[name]) for name in ("accepted", "sent again", "not used"))
    yield f"| {soak.sent.total()} | {numbers} |"


def overcome(soak: Soak) -> Iterator[str]:
    """Yield the time of recovery after each kind of fault, as Markdown."""
    yield f"| fault | times | seconds until the next complete round: median | largest |\n|{'---|' * 4}"
    for kind in KINDS:
        if seconds := [each.recovered for each in soak.faults if each.kind == kind and each.recovered is not None]:
            yield f"| {kind} | {len(seconds)} | {median(seconds):.1f} | {max(seconds):.1f} |"


def remembered(soak: Soak) -> Iterator[str]:
    """Yield the memory of each kind of process, as Markdown."""
    yield f"| process | seconds | MB after a third | MB at the end |\n|{'---|' * 4}"
    for role, seconds, early, late in soak.memory.rows():
        yield f"| {role} | {seconds:.0f} | {early:.1f} | {late:.1f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill processes of real sites for a long time.")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--every", type=float, default=20.0)
    parser.add_argument("--apart", type=int, default=30)
    parser.add_argument("--steady", type=int, default=100)
    parser.add_argument("--out", type=Path, default=Path("soak-results"))
    args = parser.parse_args()
    out: Path = args.out
    out.mkdir(parents=True, exist_ok=True)
    parts = {
        f"A fault every {args.every:g} s": lambda: counted(soak(out / "1", args.rounds, args.every)),
        f"One fault at a time, with a deadline of {DEADLINE} s": lambda: overcome(soak(out / "2", args.apart, 5, True)),
        f"{args.steady} rounds without faults": lambda: remembered(soak(out / "3", args.steady, None)),
    }
    for number, (title, part) in enumerate(parts.items(), 1):
        if not (done := out / f"{number}.md").exists():
            shutil.rmtree(out / str(number), ignore_errors=True)
            done.write_text(f"**{title}.**\n\n" + "\n".join(part()) + "\n")
    text = "\n".join((out / f"{number}.md").read_text() for number in range(1, len(parts) + 1))
    (out / "table.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
