"""Attack Coterie: kills, full disks, flipped bits, malformed messages, wrong commands and malformed inputs.

    python tests/attack/run.py [CAMPAIGN ...] [--attempts N] [--out attack-results]

Each attempt is made from a seed, and adds a line to OUT/attempts.jsonl. Attempts that are already there are skipped, so
a campaign that was stopped continues where it was. At the end, OUT/table.md has a row for each campaign, and a line
for each escape with the command that repeats it:

    python tests/attack/run.py CAMPAIGN --seed SEED
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # forked children must not wait for threads that they do not have
os.environ.setdefault("COTERIE_OFFLINE", "1")
sys.path[0] = str(Path(__file__).parents[1])

from rich.console import Console  # noqa: E402
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: E402

from attack.campaign import Campaign, Outcome, attempted, outcomes  # noqa: E402
from attack.campaigns import CAMPAIGNS  # noqa: E402

SHOWN = 20
"""Number of escapes of each campaign that the table lists."""


def past(file: Path) -> dict[str, dict[int, Outcome]]:
    """Return the outcomes that are in a results file, by campaign and seed."""
    found: dict[str, dict[int, Outcome]] = {}
    for line in file.read_text().splitlines() if file.exists() else []:
        try:
            outcome = Outcome(*json.loads(line).values())
        except ValueError:
            continue  # the runner was killed while it wrote this line
        found.setdefault(outcome.campaign, {})[outcome.seed] = outcome
    return found


def attack(campaign: Campaign, attempts: int | None, file: Path, progress: Progress) -> None:
    """Make the attempts of a campaign that are not in the results file yet."""
    task = progress.add_task(campaign.name, total=None)
    number = min(campaign.prepare(), campaign.default if attempts is None else attempts)
    done = past(file).get(campaign.name, {})
    progress.update(task, total=number, completed=sum(seed < number for seed in done))
    with file.open("a") as results:
        for outcome in outcomes(campaign, [seed for seed in range(number) if seed not in done]):
            results.write(json.dumps(outcome._asdict()) + "\n")
            results.flush()
            progress.advance(task)
            if outcome.outcome == "escaped":
                progress.console.print(
                    f"{campaign.name} {outcome.seed}: {outcome.what[:200]}", markup=False, soft_wrap=True
                )


def table(found: dict[str, dict[int, Outcome]]) -> Iterator[str]:
    """Yield the lines of the table of all campaigns, in Markdown."""
    yield "| campaign | what must hold | tried | held | escaped |"
    yield "|---|---|---|---|---|"
    escapes: dict[str, list[Outcome]] = {}
    for campaign in CAMPAIGNS:
        if tried := found.get(campaign.name, {}):
            escapes[campaign.name] = sorted(outcome for outcome in tried.values() if outcome.outcome == "escaped")
            held = len(tried) - len(escapes[campaign.name])
            numbers = f"{len(tried):,} | {held:,} | {len(escapes[campaign.name]):,}"
            yield f"| {campaign.name} | {campaign.about} | {numbers} |"
    for name, escaped in escapes.items():
        for outcome in escaped[:SHOWN]:
            what = " ".join(outcome.what.split())[:300]
            yield f"\n- `python tests/attack/run.py {name} --seed {outcome.seed}`: {what}"
        if len(escaped) > SHOWN:
            yield f"\n- and {len(escaped) - SHOWN:,} more escapes of {name}, in attempts.jsonl"


def main() -> None:
    """Run the campaigns that were named, or all of them."""
    names = [campaign.name for campaign in CAMPAIGNS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("campaigns", nargs="*", metavar="CAMPAIGN", help=f"{', '.join(names)} (default: all)")
    parser.add_argument("--attempts", type=int, help="number of attempts of each campaign")
    parser.add_argument("--seed", type=int, help="make only this attempt, here, and show what happens")
    parser.add_argument("--out", type=Path, default=Path("attack-results"), help="folder for the results")
    chosen = parser.parse_args()
    if unknown := set(chosen.campaigns) - set(names):
        parser.error(f"unknown campaign {', '.join(sorted(unknown))}; available: {', '.join(names)}")
    wanted = [campaign for campaign in CAMPAIGNS if campaign.name in (chosen.campaigns or names)]
    if chosen.seed is not None:
        for campaign in wanted:
            campaign.prepare()
            outcome = attempted(campaign, chosen.seed)
            print(f"{outcome.campaign} {outcome.seed} {outcome.outcome}: {outcome.what}")
            if outcome.outcome == "escaped":
                sys.exit(1)
        return
    chosen.out.mkdir(parents=True, exist_ok=True)
    file = chosen.out / "attempts.jsonl"
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        for campaign in wanted:
            attack(campaign, chosen.attempts, file, progress)
    text = "\n".join(table(past(file))) + "\n"
    (chosen.out / "table.md").write_text(text)
    print(text, end="")
    if any(outcome.outcome == "escaped" for tried in past(file).values() for outcome in tried.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
