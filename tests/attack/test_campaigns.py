"""A short sample of every campaign, and for each a defence that is switched off, which the campaign must notice."""

import json
import os
from pathlib import Path

import pytest
import torch
from rich.progress import Progress

from attack import answers, bits, commands, edits, kills, messages, operations, readers, sites
from attack.campaign import Campaign, Escape, attempted, outcomes
from attack.campaigns import CAMPAIGNS
from attack.run import attack, past, table
from coterie.clients import engine
from coterie.clients import sites as clients_sites
from coterie.sites.state import SiteState
from coterie.storage import checkpoint, folder
from coterie.training import Training

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
SAMPLE = {"kills": 2, "operations": 4, "bits": 60, "sites": 20, "messages": 60, "answers": 12, "commands": 16}
"""Number of attempts of a campaign. Those of `readers` and `edits` are in test_readers.py."""


@pytest.mark.parametrize("campaign", CAMPAIGNS, ids=lambda campaign: campaign.name)
def test_a_sample_is_held(campaign: Campaign) -> None:
    number = campaign.prepare()
    sample = SAMPLE.get(campaign.name, 0)
    seeds = range(0, number, number // sample)[:sample] if sample and number < 1 << 31 else range(sample)
    tried = [attempted(campaign, seed) for seed in seeds]
    assert [outcome for outcome in tried if outcome.outcome != "held"] == []


@pytest.mark.parametrize("kind", ["head", "labels", "empty", "one element", "fill in place"])
def test_messages_that_the_sample_may_miss_are_held(kind: str) -> None:
    messages.prepare()
    seed = next(seed for seed in range(3000) if messages.plan(seed)[1:3] == ("loop", kind))
    assert attempted(messages.CAMPAIGN, seed).outcome == "held"


def test_kills_notice_a_server_that_forgets_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    kills.prepare()
    seed = next(seed for seed in range(0, 600, 6) if kills.plan(seed).phases == (3, 6))
    assert kills.plan(seed).method == "pflego"
    kills.expected(kills.plan(seed))
    plain = Training._restore

    def forgetful(self: Training, *given: object) -> None:
        plain(self, *given)
        self.rounds.memory = {name: torch.zeros_like(value) for name, value in self.rounds.memory.items()}

    monkeypatch.setattr(Training, "_restore", forgetful)
    assert "differ from an unbroken run" in attempted(kills.CAMPAIGN, seed).what


def test_operations_notice_a_log_that_is_not_rewound(monkeypatch: pytest.MonkeyPatch) -> None:
    operations.prepare()
    names = operations.names("fedavg")
    place = [i for i, name in enumerate(names) if name == "mkdir"][-1]  # of the last checkpoint, after its record
    seed = _seed(operations.faults(), ("fedavg", operations.Fault("kill", place)), operations.STRIDE)
    assert attempted(operations.CAMPAIGN, seed).outcome == "held"
    monkeypatch.setattr(
        folder.RunFolder, "rewind", lambda self, index, *more: folder.read_history(self.path, index, *more)
    )
    assert "rounds.jsonl" in attempted(operations.CAMPAIGN, seed).what


def test_bits_notice_a_checkpoint_that_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    bits.prepare()
    file = sorted(path.name for path in (bits.folders()["finished"] / "checkpoint").glob("round-*"))[-1]
    path = f"checkpoint/{file}/shared.safetensors"
    size = (bits.folders()["finished"] / path).stat().st_size
    seed = _seed(bits.all_damages(), ("finished", bits.Damage(path, "bit", 8 * size - 10)), bits.STRIDE)
    assert "fell back" in attempted(bits.CAMPAIGN, seed).what
    monkeypatch.setattr(checkpoint, "_checked", lambda path, *_: path.read_bytes())
    assert "another shared, in silence" in attempted(bits.CAMPAIGN, seed).what


def test_files_of_another_run_are_held() -> None:
    bits.prepare()
    swaps = [each for each in bits.all_damages() if isinstance(each[1], bits.Swap)]
    seeds = [_seed(bits.all_damages(), each, bits.STRIDE) for each in swaps]
    assert [tried for seed in seeds if (tried := attempted(bits.CAMPAIGN, seed)).outcome != "held"] == []


def test_bits_notice_checkpoints_that_may_belong_to_any_run(monkeypatch: pytest.MonkeyPatch) -> None:
    bits.prepare()
    swap = bits.Swap(("checkpoint",), bits.others()["finished"])
    seed = _seed(bits.all_damages(), ("finished", swap), bits.STRIDE)
    monkeypatch.setattr(checkpoint, "_manifest", lambda target, run: json.loads((target / "manifest.json").read_text()))
    assert "another shared, memory, personal, in silence" in attempted(bits.CAMPAIGN, seed).what


def test_messages_notice_a_reply_that_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    messages.prepare()
    seed = next(seed for seed in range(0, 3000, 3) if messages.plan(seed).kind == "nan")
    assert "DivergedError" not in attempted(messages.CAMPAIGN, seed).what
    monkeypatch.setattr(engine, "finite_rows", lambda size, *trees: torch.ones(size, dtype=torch.bool))
    assert "the whole run ends: DivergedError" in attempted(messages.CAMPAIGN, seed).what


def test_sites_notice_a_reply_that_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    sites.prepare()
    reply = next(damage.file for damage in sites.all_damages() if damage.file.endswith(".reply"))
    place = 8 * (sites.made()[0] / reply).stat().st_size - 2
    seed = _seed(sites.all_damages(), sites.Damage(reply, "bit", place), sites.STRIDE)
    assert attempted(sites.CAMPAIGN, seed).outcome == "held"
    monkeypatch.setattr(
        SiteState, "reply", lambda self, pending: (self._folder / f"{pending.reply}.reply").read_bytes()
    )
    assert "something else, in silence" in attempted(sites.CAMPAIGN, seed).what


def test_answers_notice_scores_that_are_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = [seed for seed in range(3000) if answers.plan(seed)[:3] == ("fedavg", "scores", "head")]
    monkeypatch.setattr(clients_sites, "counts_in", lambda head, name: head.get(name))
    assert any(attempted(answers.CAMPAIGN, seed).outcome == "escaped" for seed in seeds[:12])


def test_commands_notice_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    commands.prepare()
    monkeypatch.setattr("coterie.cli.app.UserError", ZeroDivisionError)
    assert "traceback" in attempted(commands.CAMPAIGN, 0).what


def test_readers_notice_an_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.data.sets.libsvm.UserError", RuntimeError)
    place = [*readers.attempts()].index("libsvm")
    tried = [attempted(readers.CAMPAIGN, place + 16 * number) for number in range(20)]
    assert any("RuntimeError" in outcome.what for outcome in tried if outcome.outcome == "escaped")


def test_edits_notice_an_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.data.sets.libsvm.UserError", RuntimeError)
    outcome = attempted(edits.CAMPAIGN, [*edits.sources()].index("libsvm"))
    assert outcome.outcome == "escaped"
    assert "libsvm: RuntimeError" in outcome.what
    assert "Draw 2" in outcome.what


def _seed(everything: tuple[object, ...], wanted: object, stride: int) -> int:
    """Return the seed of an attempt."""
    return everything.index(wanted) * pow(stride, -1, len(everything)) % len(everything)


@pytest.fixture
def toy() -> Campaign:
    def attempt(seed: int, folder: Path) -> str:
        assert folder.is_dir()
        if seed == 3:
            raise Escape("went through")
        if seed == 5:
            os._exit(7)
        return f"seed {seed}"

    return Campaign("toy", "nothing", attempt, lambda: 8, 100)


def test_a_crash_is_an_escape_and_the_rest_follows(toy: Campaign) -> None:
    tried = list(outcomes(toy, range(8)))
    assert [outcome.seed for outcome in tried] == [*range(8)]
    assert [(o.seed, o.what) for o in tried if o.outcome == "escaped"] == [
        (3, "went through"),
        (5, "the process crashed"),
    ]


def test_a_campaign_resumes(toy: Campaign, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "attempts.jsonl"
    with Progress(disable=True) as progress:
        attack(toy, 4, file, progress)
        first = file.read_text()
        with file.open("a") as half:
            half.write('{"campaign": "to\n')
        attack(toy, None, file, progress)
    assert file.read_text().startswith(first)
    found = past(file)
    assert sorted(found["toy"]) == [*range(8)]
    monkeypatch.setattr("attack.run.CAMPAIGNS", (toy,))
    text = "\n".join(table(found))
    assert "| toy | nothing | 8 | 6 | 2 |" in text
    assert "`python tests/attack/run.py toy --seed 3`: went through" in text
