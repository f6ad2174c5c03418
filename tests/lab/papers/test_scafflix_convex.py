"""`coterie reproduce scafflix-convex`: its problem and curves equal those of NumPy; what it stores and reports."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

import laboratory as lab
from commands import coterie, in_folder
from coterie import registry
from coterie.core.steps.convex import curvature
from coterie.core.tree import within
from coterie.data.sets.libsvm_sets import Collected, Figures
from coterie.errors import UserError
from coterie.lab.papers import scafflix_convex as convex
from coterie.lab.papers import scafflix_figures as figures
from coterie.lab.papers.mixtures import Mixtures
from coterie.lab.papers.numbers import VERSION
from coterie.settings import settings

FEW = ["partition.clients=4", "engine.kind=loop"]


@settings
class Tiny(Collected):
    """Replace mushrooms by sixty rows of three features."""

    def figures(self):
        return Figures("tiny", 3, 60)


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    rng = np.random.default_rng(4)
    x, y = rng.normal(size=(60, 3)) + 0.5, rng.permutation(60) % 2 + 1
    rows = [f"{b} " + " ".join(f"{n}:{value}" for n, value in enumerate(a, 1)) for a, b in zip(x, y, strict=True)]
    folder = tmp_path / "libsvm"
    folder.mkdir()
    (folder / "tiny").write_text("\n".join(rows))
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    monkeypatch.setitem(registry.BUILT_IN["data"], "mushrooms", f"{__name__}:Tiny")
    monkeypatch.chdir(tmp_path)
    return x.astype(np.float32).astype(float), y


def laboratory(changes=(), out="here", seeds=1, scale="small", **wanted):
    return convex.ScafflixConvex("scafflix-convex", wanted, scale, seeds, Path(out), [*FEW, *changes])


def the(work, **at):
    (found,) = [each for each in work.chosen if all(each.at[axis] == value for axis, value in at.items())]
    return found


def never():
    return False


def by_hand(dealt):
    """Return the clients' f_i, implemented independently of the laboratory."""
    return [lab.Logistic(each.A, each.b, 0.1) for each in dealt.problems]


@pytest.mark.parametrize(("data", "p"), [("mushrooms", 0.168839), ("a6a", 0.234411), ("w6a", 0.335769)])
def test_the_constants_of_the_authors_plots(data, p):
    """Clients are blocks of the file, with an intercept. L_i is as in the authors' code, which divides mu by 4 n_i."""
    if not (Path(os.environ.get("COTERIE_DATA", "")) / "libsvm" / f"{data}.gz").exists():
        pytest.skip(f"set COTERIE_DATA to a folder that holds libsvm/{data}.gz")
    work = convex.ScafflixConvex("scafflix-convex", {"data": [data]}, "full", 1, Path("here"))
    problems = work._dealt(the(work, what="convergence", split="contiguous", method="gd", alpha="1").recipe).problems
    assert len(problems) == 8
    L = [np.linalg.eigvalsh(f.A.T @ f.A + 0.1 * np.eye(f.A.shape[1]))[-1] / (4 * len(f.b)) for f in problems]
    assert 1 / np.sqrt(np.mean(L) / 0.1) == pytest.approx(p, abs=6e-7)


def test_the_clients_have_all_rows_of_the_file_in_its_order(tiny):
    x, y = tiny
    work = laboratory()
    problems = work._dealt(the(work, what="convergence", split="contiguous", method="gd", alpha="1").recipe).problems
    assert [len(f.b) for f in problems] == [15] * 4
    np.testing.assert_array_equal(np.concatenate([f.A for f in problems]), np.column_stack([x, np.ones(60)]))
    np.testing.assert_array_equal(np.concatenate([f.b for f in problems]), np.where(y == 2, 1, -1))


def test_two_outputs_are_the_papers_problem(tiny):
    """Loss, gradient and curvature of the task with 2 mu equal those of f_i over one vector, computed by hand."""
    work = laboratory()
    measurement = the(work, what="convergence", split="label-ratio", method="gd", alpha="0.1")
    dealt = work._dealt(measurement.recipe)
    load = work._ready(measurement.recipe, dealt.federation).clients.load
    task = load.work.task
    start = task.initial
    np.testing.assert_array_equal(convex._vector(start), np.ones(4))
    v = np.array([0.3, -1.0, 2.0, 0.7])
    for i, (f, plain) in enumerate(zip(dealt.problems, by_hand(dealt), strict=True)):
        value, gradient = f.at(v)
        assert value == pytest.approx(np.log(1 + np.exp(-f.b * (f.A @ v))).mean() + 0.05 * v @ v, rel=1e-14)
        np.testing.assert_allclose(gradient, plain.gradient(v), rtol=1e-12)
        np.testing.assert_allclose(f.hessian(v), plain.hessian(v), rtol=1e-12)
        data = load.data(i, "train", 0)
        squared = sum(float((value**2).sum()) for value in start.values())
        at_one = float(task.loss(start, data)[0]) + 0.2 / 2 * squared
        assert at_one == pytest.approx(plain.value(np.ones(4)), rel=1e-14)
        assert pytest.approx(2 * plain.L(), rel=1e-12) == curvature(task, data, 0.2).L


@pytest.mark.parametrize("alpha", [1.0, 0.1, 1e-4])
def test_the_reference_is_the_optimum(tiny, alpha):
    work = laboratory()
    dealt = work._dealt(the(work, what="convergence", split="label-ratio", method="gd", alpha="1").recipe)
    plain = by_hand(dealt)
    np.testing.assert_allclose(dealt.optima, [f.minimum() for f in plain], rtol=0, atol=1e-13)
    mixtures = Mixtures(dealt.problems, alpha, dealt.optima)
    best = mixtures.minimum()

    def models(v):
        return [alpha * v + (1 - alpha) * f.minimum() for f in plain]

    gradient = alpha * np.mean([f.gradient(x) for f, x in zip(plain, models(best), strict=True)], axis=0)
    assert np.linalg.norm(gradient) <= 1e-14 * alpha * 1.5  # rounded otherwise
    value = np.mean([f.value(x) for f, x in zip(plain, models(best), strict=True)])
    assert dealt.least(alpha) == pytest.approx(value, rel=1e-14)
    for step in np.eye(4):
        assert mixtures.at(best + step)[0] > dealt.least(alpha)


def test_gd_is_gradient_descent_by_hand(tiny):
    work = laboratory()
    measurement = the(work, what="convergence", split="label-ratio", method="gd", alpha="0.1")
    found = work.result(measurement, never)
    plain = by_hand(work._dealt(measurement.recipe))
    own, rate = [f.minimum() for f in plain], 1 / (0.01 * np.mean([f.L() for f in plain]))
    v, gaps, norms = np.ones(4), [], []
    least = work._dealt(measurement.recipe).least(0.1)
    for _ in found["gap"]:
        models = [0.1 * v + 0.9 * x for x in own]
        gaps.append(np.mean([f.value(x) for f, x in zip(plain, models, strict=True)]) - least)
        g = 0.1 * np.mean([f.gradient(x) for f, x in zip(plain, models, strict=True)], axis=0)
        norms.append(g @ g)
        v = v - rate * g
    np.testing.assert_allclose(found["gap"], gaps, rtol=6e-5, atol=1e-15)
    np.testing.assert_allclose(found["gradient"], norms, rtol=6e-5, atol=1e-16)
    assert found["steps"] == list(range(len(gaps)))
    assert gaps[-1] <= min(1e-8, 1e-6 * gaps[0]) < gaps[-2]


@pytest.mark.parametrize(("what", "variant"), [("convergence", ""), ("steps", "max"), ("steps", "mean")])
def test_scafflix_is_algorithm_1_by_hand(tiny, what, variant):
    work = laboratory(seeds=2)
    at = {"what": what, "variant": variant, "split": "label-ratio", "method": "scafflix", "alpha": "0.1", "seed": "1"}
    measurement = the(work, **at)
    found, dealt = work.result(measurement, never), work._dealt(measurement.recipe)
    plain = by_hand(dealt)
    L = np.array([f.L() for f in plain])
    gamma = 1 / {"": L, "max": np.full(4, max(L)), "mean": np.full(4, np.mean(L))}[variant]
    rounds = [(int(steps), range(4)) for steps in np.diff(found["steps"])]
    assert len({steps for steps, _ in rounds}) > 1
    mixtures = Mixtures(dealt.problems, 0.1, dealt.optima)
    for n in (1, 2, len(rounds)):
        after = lab.scafflix(
            [f.gradient for f in plain],
            np.ones(4),
            [f.minimum() for f in plain],
            [0.1] * 4,
            list(gamma),
            np.sqrt(min(gamma) * 0.1),
            rounds[:n],
        )
        gap = mixtures.at(after.x)[0] - dealt.least(0.1)
        assert found["gap"][n] == pytest.approx(gap, rel=6e-5, abs=1e-14)
        np.testing.assert_allclose(sum(after.h), 0, atol=1e-13)


def test_the_control_variates_sum_to_zero(tiny):
    work = laboratory()
    measurement = the(work, what="convergence", split="quantity", method="scafflix", alpha="0.01")
    run = work._ready(measurement.recipe, work._dealt(measurement.recipe).federation)
    rounds = run.rounds.play()
    for _ in range(6):
        next(rounds)
        h = [convex._vector(within("h", run.clients.store[i])) for i in range(4)]
        assert max(np.abs(own).max() for own in h) > 1e-4
        np.testing.assert_allclose(0.01 * sum(h), 0, atol=1e-14)


def test_the_coin_has_the_seed_and_the_split_has_none(tiny):
    at = {"what": "convergence", "split": "iid", "method": "scafflix", "alpha": "0.1"}
    works = [laboratory(seeds=2), laboratory(seeds=2)]
    one, other = (work.result(the(work, **at, seed=seed), never) for work, seed in zip(works, "01", strict=True))
    assert one["steps"][:8] != other["steps"][:8]
    assert one["gap"][0] == other["gap"][0]


def test_inexact_optima_are_sought_from_100(tiny):
    """Without any step the models at the start are 0.1 + 0.9 * 100; with many steps they are practically exact."""
    work = laboratory()
    at = {"what": "inexact", "alpha": "0.1"}
    none, many = (work.result(the(work, **at, variant=each), never) for each in ("0 steps", "200 steps"))
    dealt = work._dealt(the(work, **at, variant="0 steps").recipe)
    plain = by_hand(dealt)
    value = np.mean([f.value(np.full(4, 0.1 + 0.9 * 100)) for f in plain])
    assert none["gap"][0] == pytest.approx(value - dealt.least(0.1), rel=1e-4)
    assert len(none["gap"]) == 61
    everyone = Mixtures(dealt.problems, 1.0, dealt.optima)
    # Where all clients have the same anchor, (FLIX) is (ERM): nothing is personal.
    assert none["gap"][-1] == pytest.approx(everyone.at(everyone.minimum())[0] - dealt.least(0.1), rel=1e-3)
    assert abs(many["gap"][-1]) < 1e-6 < none["gap"][-1]


def test_iterations_are_counted_as_by_hand(tiny):
    work = laboratory()
    measurement = the(work, what="iterations")
    found = work.result(measurement, never)
    f = by_hand(work._dealt(measurement.recipe))[2]
    for start in ("0", "100"):
        v, done, expected = np.full(4, float(start)), 0, []
        for tolerance in map(float, convex.TOLERANCES):
            while np.linalg.norm(f.gradient(v)) > tolerance:
                v, done = v - f.gradient(v) / f.L(), done + 1
            expected.append(done)
        assert [counts[2] for counts in found[start].values()] == expected
    assert measurement.recipe.partition.clients == 4  # which is this file's change
    assert the(convex.ScafflixConvex("x", {}, "small", 1, Path("x")), what="iterations").recipe.partition.clients == 100


def small(monkeypatch):
    monkeypatch.setattr(figures, "SPLITS", {"iid": "IID, Figure 9"})
    monkeypatch.setattr(convex, "ALPHAS", ("1", "0.01"))
    monkeypatch.setattr(convex, "STEP_ALPHAS", ())
    monkeypatch.setattr(convex, "_searches", lambda: iter(()))


def reproduce(monkeypatch, *arguments):
    with in_folder(Path.cwd(), monkeypatch):
        return coterie(monkeypatch, "reproduce", "scafflix-convex", *arguments)


def test_the_command_measures_what_is_missing_and_goes_on(tiny, monkeypatch, tmp_path, capsys):
    small(monkeypatch)
    few = [argument for change in FEW for argument in ("--set", change)]
    kept = tmp_path / "here" / "measured"
    result, made = convex.ScafflixConvex.result, []

    def counted(self, measurement, should_stop):
        made.append(measurement.name)
        return result(self, measurement, lambda: len(made) == 3)

    with monkeypatch.context() as patch:
        patch.setattr(convex.ScafflixConvex, "result", counted)
        assert reproduce(patch, "--out", "here", *few) == 130
    assert "again to continue" in capsys.readouterr().err
    assert sorted(path.stem for path in kept.iterdir()) == sorted(made[:2])
    before = {path.name: path.read_bytes() for path in kept.iterdir()}
    monkeypatch.setattr(convex.ScafflixConvex, "result", lambda *args: (made.append(args[1].name), result(*args))[1])
    assert reproduce(monkeypatch, "--out", "here", *few) == 0
    assert len(made) == len(set(made)) + 1 == 6  # the third was begun twice, the first two once
    assert all((kept / name).read_bytes() == content for name, content in before.items())
    out = capsys.readouterr().out
    assert "Rounds to a gap of 1e-08" in out
    assert "Figure 12" in out
    assert "here/page.html" in out
    page = (tmp_path / "here" / "page.html").read_text()
    assert "mushrooms, IID, Figure 9" in page
    assert "<script src" not in page
    assert "GD, alpha 0.01" in page
    assert (tmp_path / "here" / "table.md").read_text().count("| mushrooms | iid |") == 2
    assert reproduce(monkeypatch, "--out", "here", "--set", "partition.clients=5") == 2
    assert "another recipe: " in capsys.readouterr().err


def test_without_measurements_a_table_that_is_there_stays(tiny, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(convex.ScafflixConvex, "result", lambda *_: pytest.fail("measured"))
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "table.md").write_text("kept")
    assert reproduce(monkeypatch, "--only-table", "--out", "here") == 2
    assert "omit --only-table" in capsys.readouterr().err
    assert [(path.name, path.read_text()) for path in (tmp_path / "here").iterdir()] == [("table.md", "kept")]


def test_which_data(tiny):
    def of(**options):
        return {each.at["data"] for each in laboratory(**options).chosen}

    assert of() == {"mushrooms"}
    assert of(scale="full") == {"mushrooms", "a6a", "w6a"}
    assert of(data=["w6a"]) == {"w6a"}
    with pytest.raises(UserError, match="no --data mushroom "):
        of(data=["mushroom"])
    with pytest.raises(UserError, match="--scale large"):
        laboratory(scale="large")


def curve(at, gaps, steps=None):
    values = dict(zip(figures.AXES, ("convergence", "d", "iid", *at), strict=True))
    return figures.PlacedResult(values, {"gap": gaps, "gradient": gaps, "steps": steps or list(range(len(gaps)))})


def test_the_arithmetic_of_the_table():
    """The rounds to 1e-8 or a millionth of the start are 4 and 2 for GD, 1 and the mean of 1 and 2 for Scafflix."""
    placed = [
        curve(("gd", "1", "", "0"), [1.0, 1e-2, 1e-4, 1e-6, 1e-8]),
        curve(("scafflix", "1", "", "0"), [1.0, 1e-8], [0, 7]),
        curve(("gd", "0.1", "", "0"), [1e-5, 1e-7, 1e-8, 1e-11]),
        curve(("scafflix", "0.1", "", "0"), [1e-5, 1e-12], [0, 5]),
        curve(("scafflix", "0.1", "", "1"), [1e-5, 1e-7, 1e-11], [0, 2, 6]),
    ]
    table = figures.tables(placed)[0]
    assert table.lines[0] == ["d", "iid", "1", "4", "1", "4.0", "3", "1"]
    assert table.lines[1] == ["d", "iid", "0.1", "2", "1.5", "1.3", "3", "1.5"]
    assert "fewer rounds than GD at each alpha. It holds in 2 of 2 lines" in table.notes[0]
    assert "GD needs fewer rounds as alpha decreases. It holds on 1 of 1 splits" in table.notes[1]
    assert "Scafflix needs fewer rounds as alpha decreases. It holds on 0 of 1 splits" in table.notes[2]
    assert "at most 1.00 times the smallest" in table.notes[3]
    assert "needs 1.83 to 2.33 times the local gradients" in table.notes[4]
    short = [curve(("gd", "1", "", "0"), [1.0, 1e-3]), curve(("scafflix", "1", "", "0"), [1.0, 1e-9])]
    table = figures.tables(short)[0]
    assert table.lines[0][3:6] == ["–", "1", "–"]  # noqa: RUF001
    assert "in 0 of 0 lines" in table.notes[0]


def test_a_curve_over_seeds_is_their_mean_as_far_as_all_go():
    curves = [{"gap": [1.0, 0.5, 0.1]}, {"gap": [1.0, 0.3]}]
    assert figures._mean(curves, "gap") == [1.0, 0.4]


def test_the_share_of_steps_to_a_loose_optimum():
    counts = {"0": {"1e-1": [2, 4], "1e-6": [20, 40]}}
    at = dict(zip(figures.AXES, ("iterations", "d", "label-ratio", "gd", "", "", ""), strict=True))
    table = figures.tables([figures.PlacedResult(at, counts)])[0]
    assert table.lines == [["d", "0", "3.0", "30.0", "10.00"]]


def test_kept_as_small_json(tiny):
    work = laboratory()
    measurement = the(work, what="convergence", split="iid", method="scafflix", alpha="0.1")
    work.measure(measurement, never)
    path = work._path(measurement)
    content = json.loads(path.read_text())
    assert content.pop("recipe") == measurement.recipe.as_dict()
    assert content.pop("numbers") == VERSION
    assert content == work.result(measurement, never)
    assert len(content["gap"]) == len(content["gradient"]) == len(content["steps"])
    assert measurement not in work.missing()
