"""Sweeps on embedded digits: what is found, what is left out, and that a broken sweep ends like an unbroken one."""

import json
import tomllib

import pytest

from coterie import recipe as recipes
from coterie.errors import DivergedError, UserError
from coterie.lab.sweep.sweep import validation_score
from coterie.lab.sweep.trial import complete
from coterie.measure.record import Evaluated
from coterie.training import Training
from sweeps import GOOD, IDLE, TREE, played, sweep

RATES = {"method": {"eta": [IDLE, GOOD]}}
FEW_CHECKPOINTS = ["run.checkpoint_every=2"]
SEARCHES = {
    "grid": ({"method": {"eta": [0.0003, 0.003, 0.03, GOOD], "tau": [1, 2]}}, {}),
    "tpe": ({"method": {"eta": {"low": 1e-4, "high": 1.0, "log": True}, "tau": [1, 2]}}, {"trials": 12}),
}


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    """Rates by local steps, all complete."""
    space = {"method": {"eta": [IDLE, GOOD], "tau": [1, 3]}}
    return played(sweep(tmp_path_factory.mktemp("grid") / "mine", space, prune=False))


@pytest.fixture(scope="module", params=SEARCHES)
def whole(request, tmp_path_factory):
    """With pruning, by either search, without a break."""
    space, settings = SEARCHES[request.param]
    out = tmp_path_factory.mktemp("whole") / "mine"
    return played(sweep(out, space, FEW_CHECKPOINTS, search=request.param, **settings))


def found(work):
    return json.loads((work.out / "trials.json").read_text())


def test_a_grid_tries_every_combination_to_its_end(grid):
    assert sorted((trial.point["method.eta"], trial.point["method.tau"]) for trial in grid.trials) == [
        (IDLE, 1), (IDLE, 3), (GOOD, 1), (GOOD, 3)
    ]  # fmt: skip
    assert {trial.state for trial in grid.trials} == {"complete"}
    assert all(list(trial.curve) == [1, 2, 3, 4] and trial.score == trial.curve[4] for trial in grid.trials)


def test_the_rate_that_learns_is_the_best_by_validation_scores(grid):
    best = complete(grid.trials)[0]
    assert best.point == {"method.eta": GOOD, "method.tau": 3}
    idle = [trial.score for trial in grid.trials if trial.point["method.eta"] == IDLE]
    assert len(set(idle)) == 1  # who does not move is as good after one step as after three
    assert best.score > idle[0] + 0.2
    for trial in found(grid)["trials"]:
        summary = json.loads((grid.out / trial["folder"] / "summary.json").read_text())
        assert trial["validation"] == summary["validation"]["existing"]["as_is"]["mean"]
        assert trial["validation"] != summary["existing"]["as_is"]["mean"]


def test_best_toml_is_a_recipe_that_gives_the_best_score_again(grid):
    text = (grid.out / "best.toml").read_text()
    assert text.splitlines()[0].startswith("# The best of 4 complete trials")
    recipe = recipes.read(grid.out / "best.toml")
    assert recipe.as_dict() == {
        **recipes.read(TREE).as_dict(),
        "method": {**recipes.read(TREE).as_dict()["method"], "tau": 3},
    }
    summary = Training(recipe, recipe.federation()).play().summary
    assert summary.validation.existing.as_is.mean == complete(grid.trials)[0].score


def test_only_the_best_trial_shows_test_figures(grid):
    content = found(grid)
    summary = json.loads((grid.out / complete(grid.trials)[0].folder / "summary.json").read_text())
    assert content["best_figures"]["test"] == {group: summary[group] for group in ("existing", "new")}
    assert all("test" not in json.dumps(trial) for trial in content["trials"])


@pytest.mark.parametrize("protocol", ["adapted", "new_before", "new_after"])
def test_another_protocol_decides_by_its_own_figures(tmp_path, protocol):
    work = played(sweep(tmp_path / "mine", RATES, protocol=protocol))
    group, key = {"adapted": ("existing", "adapted")}.get(protocol, ("new", protocol.removeprefix("new_")))
    for trial in complete(work.trials):
        summary = json.loads((work.out / trial.folder / "summary.json").read_text())
        assert trial.score == summary["validation"][group][key]["mean"]


def evaluated(validation, test, loss=1.0):
    split = {"existing": {"as_is": {"mean": test}, "adapted": {"mean": test}}, "new": {"before": {}, "after": {}}}
    kept = {"existing": {"as_is": {"mean": validation}, "adapted": {"mean": 0.25}}}
    return Evaluated.from_json({**split, "validation": kept, "train_loss": loss})


def test_test_scores_have_no_say():
    assert validation_score(7, evaluated(0.5, 0.9), "as_is") == 0.5
    assert validation_score(7, evaluated(0.5, None), "adapted") == 0.25
    for broken in (evaluated(None, 0.9), evaluated(float("nan"), 0.9), evaluated(0.5, 0.9, loss=None)):
        with pytest.raises(DivergedError, match="round 7"):
            validation_score(7, broken, "as_is")


def test_who_has_played_the_last_round_is_complete(tmp_path):
    """However far behind: the second trial is, at the only round, where Hyperband would judge it."""
    work = played(sweep(tmp_path / "mine", {"method": {"eta": [GOOD, IDLE]}}, ["run.rounds=1"]))
    assert [(trial.point["method.eta"], trial.state) for trial in work.trials] == [
        (GOOD, "complete"),
        (IDLE, "complete"),
    ]
    assert work.trials[0].score > work.trials[1].score


def test_pruned_trials_are_listed_as_such_and_have_no_result(whole):
    pruned = [trial.number for trial in whole.trials if trial.state == "pruned"]
    assert 0 < len(pruned) < len(whole.trials)
    assert {trial.state for trial in whole.trials} == {"complete", "pruned"}
    listed, others = (whole.out / "table.md").read_text().split("Incomplete trials")
    for trial in found(whole)["trials"]:
        is_pruned = trial["trial"] in pruned
        assert (trial["validation"] is None) == is_pruned
        assert ("4" not in trial["curve"]) == is_pruned
        assert (whole.out / trial["folder"] / "summary.json").exists() != is_pruned
        assert (f"\n| {trial['trial']} |" in others) == is_pruned
        assert (f"\n| {trial['trial']} |" in listed) != is_pruned
    assert found(whole)["best"] == max(complete(whole.trials), key=lambda trial: trial.score).number


def test_a_trial_that_diverges_or_cannot_be_is_no_end(tmp_path):
    space = {"method": {"eta": [GOOD, 1e38]}, "run": {"clients_per_round": [2, 99]}}
    work = played(sweep(tmp_path / "mine", space))
    states = {tuple(trial.point.values()): trial for trial in work.trials}
    assert states[GOOD, 2].state == "complete"
    assert states[1e38, 2].state == "diverged"
    assert "lower the learning rates" in states[1e38, 2].remark
    assert states[1e38, 2].score is None
    assert {states[rate, 99].state for rate in (GOOD, 1e38)} == {"failed"}
    assert "run.clients_per_round" in states[GOOD, 99].remark
    assert found(work)["best"] == states[GOOD, 2].number


def test_a_trial_that_was_killed_before_it_had_begun(tmp_path):
    (left := tmp_path / "mine" / "trials" / "000").mkdir(parents=True)
    (left / "rounds.jsonl").touch()
    sweep(tmp_path / "other", RATES, ["run.rounds=1"]).close()
    (tmp_path / "other" / "sweep.toml").rename(tmp_path / "mine" / "sweep.toml")
    work = played(sweep(tmp_path / "mine", RATES, ["run.rounds=1"]))
    assert {trial.state for trial in work.trials} == {"complete"}


def test_without_a_complete_trial_there_is_no_best(tmp_path):
    work = played(sweep(tmp_path / "mine", {"method": {"eta": [1e37, 1e38]}}))
    assert found(work)["best"] is None
    assert not (work.out / "best.toml").exists()
    assert "No trial is complete" in (work.out / "table.md").read_text()


def test_a_broken_sweep_ends_like_an_unbroken_one(tmp_path, whole):
    """Each start ends some rounds later than the one before, by Ctrl-C or, without a checkpoint, by a crash."""
    starts = 0
    while True:
        rounds, last, kill = [], 1 + 4 * starts, starts % 2

        def killed(record, rounds=rounds, last=last, kill=kill):
            rounds.append(record)
            if kill and len(rounds) == last:
                raise RuntimeError("killed")

        settings = {key: getattr(whole.settings, key) for key in ("search", "trials")}
        work = sweep(tmp_path / "mine", whole.settings.space, FEW_CHECKPOINTS, **settings)
        starts += 1
        try:
            played(work, lambda rounds=rounds, last=last: len(rounds) + 1 >= last, killed)
        except (KeyboardInterrupt, RuntimeError):
            continue
        break
    assert starts > 3
    assert work.trials == whole.trials
    for file in ("table.md", "best.toml"):
        assert (work.out / file).read_text() == (whole.out / file).read_text()


def test_tpe_draws_within_its_ranges_and_goes_on_with_more_trials(tmp_path):
    space = {"method": {"eta": {"low": 0.01, "high": 0.1, "log": True}, "tau": {"low": 1, "high": 3}}}
    first = played(sweep(tmp_path / "mine", space, search="tpe", trials=2)).trials
    more = played(sweep(tmp_path / "mine", space, search="tpe", trials=4))
    assert more.trials[:2] == first
    assert len(more.trials) == 4
    assert len({trial.point["method.eta"] for trial in more.trials}) == 4
    for trial in more.trials:
        assert 0.01 <= trial.point["method.eta"] <= 0.1
        assert trial.point["method.tau"] in (1, 2, 3)
        assert isinstance(trial.point["method.tau"], int)
    other = played(sweep(tmp_path / "other", space, ["run.seed=1"], search="tpe", trials=2))
    assert [trial.point for trial in other.trials] != [trial.point for trial in first]


WRONG = {
    "no validation": (
        RATES,
        ["partition.validation=0.0"],
        {},
        ["partition.validation=0.2", "not be used to choose"],
    ),
    "too little": (RATES, ["partition.validation=0.001"], {}, ["partition.validation"]),
    "no new users": (RATES, ["partition.new_users=0.0"], {"protocol": "new_after"}, ["partition.new_users"]),
    "no rounds": (RATES, ["run.rounds=0"], {}, ["run.rounds"]),
    "trials of a grid": (RATES, [], {"trials": 5}, ["all of its 2 combinations", "--trials"]),
    "a range in a grid": ({"method": {"eta": {"low": 0.1, "high": 1.0}}}, [], {}, ["--search tpe"]),
    "an empty space": ({}, [], {}, ["search space is empty"]),
    "an unknown key": ({"method": {"etta": [1]}}, [], {}, ["method.etta", "'eta'"]),
    "what a run would refuse": (RATES, ["run.clients_per_round=99"], {}, ["run.clients_per_round"]),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said_before_anything_is_written(tmp_path, case):
    space, changes, settings, words = WRONG[case]
    with pytest.raises(UserError) as told:
        sweep(tmp_path / "mine", space, changes, **settings)
    for word in words:
        assert word in str(told.value), word
    assert not (tmp_path / "mine").exists()


def test_a_folder_is_for_one_sweep(tmp_path, grid):
    with pytest.raises(UserError, match=r"other settings: sweep\.space\.method\.tau"):
        sweep(grid.out, RATES, prune=False)
    with pytest.raises(UserError, match=r"other settings: run\.seed"):
        sweep(grid.out, grid.settings.space, ["run.seed=3"], prune=False)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").touch()
    with pytest.raises(UserError, match="not an empty folder"):
        sweep(tmp_path / "photos", RATES)
    held = sweep(tmp_path / "mine", RATES)
    with pytest.raises(UserError, match="in use by another process"):
        sweep(tmp_path / "mine", RATES)
    held.close()


def test_sweep_toml_says_what_is_searched(grid):
    written = tomllib.loads((grid.out / "sweep.toml").read_text())
    assert written.pop("sweep") == {
        "search": "grid", "protocol": "as_is", "prune": False, "space": {"method": {"eta": [IDLE, GOOD], "tau": [1, 3]}}
    }  # fmt: skip
    assert written == recipes.read(TREE).as_dict()
