"""Existing and new users at the round that validation picks, and seeds compared with one another: by hand."""

from dataclasses import replace

import pytest

from coterie.lab.papers.comparison import Row
from coterie.lab.papers.measured import Measured
from coterie.lab.papers.user_tables import over_users, picks, validated
from coterie.lab.papers.users import Over, Picked, paired, pick, seed_mean
from coterie.measure.cost import Cost
from coterie.measure.record import Evaluated, Record


def figures(mean, bottom_decile=0.5, std=0.25):
    return {"mean": mean, "bottom_decile": bottom_decile, "std": std, "stderr": 0.1}


def record(n, validation, test, new=0.75):
    """Of round n, evaluated; it cost 3 bytes down, 1 up, and 10 operations."""
    groups = {
        "existing": {"as_is": figures(test / 2), "adapted": figures(test)},
        "new": {"before": figures(new and new / 3), "after": figures(new)},
        "validation": {"existing": {"as_is": figures(0.99), "adapted": figures(validation)}},
    }
    return replace(plain(n), eval=Evaluated.from_json(groups))


def plain(n):
    return Record(n, (), None, Cost(bytes_down=3, bytes_up=1, flops=10))


def picked(adapted, after=50.0, validation=0.0, n=5, num_bytes=1_000_000, flops=2e9):
    over = Over(adapted, adapted - 10, 4.0)
    return Picked(
        n, validation, Over(adapted - 1, 0.0, 0.0), over, Over(40.0, 0.0, 0.0), Over(after, 0, 0), num_bytes, flops
    )


def row(runs, at=None, users=None, state="", seeds=None):
    measured = [Measured(None, None, None, None, None, 1.0, 1.0, picked=run) for run in runs]
    return Row(
        at or {"method": "fedavg"}, "adapted", None, None, measured, state, users or {}, seeds or range(len(runs))
    )


def test_validation_picks_the_round_and_the_test_split_does_not():
    found = pick([plain(1), record(2, 0.5, 0.9), plain(3), record(4, 0.7, 0.6), record(5, 0.6, 0.95)])
    assert found.round == 4
    assert found.validation == pytest.approx(70)
    assert found.adapted == pytest.approx((60, 50, 25))
    assert found.as_is.mean == pytest.approx(30)
    assert found.after.mean == pytest.approx(75)
    assert found.before.mean == pytest.approx(25)
    assert (found.bytes, found.flops) == (16, 40)  # of rounds 1 to 4, evaluated or not


def test_of_rounds_that_validate_alike_the_first_is_picked():
    assert pick([record(1, 0.7, 0.1), record(2, 0.7, 0.9)]).round == 1


def test_without_validation_nothing_is_picked_and_without_new_users_the_rest_is():
    evaluated = record(1, 0.5, 0.5)
    without = replace(evaluated, eval=replace(evaluated.eval, validation=None))
    assert pick([without, plain(2)]) is None
    alone = pick([record(1, 0.5, 0.5, new=None)])
    assert alone.after is alone.before is None
    assert alone.adapted.mean == 50
    assert Picked.from_dict(alone.as_dict()) == alone
    assert Picked.from_dict(picked(80).as_dict()) == picked(80)


def test_the_spread_over_seeds():
    found = seed_mean([90.0, 94.0, 95.0, 97.0])
    assert found.mean == 94
    assert found.std == pytest.approx((26 / 3) ** 0.5)  # 16 + 0 + 1 + 9, over n - 1
    assert found.stderr == pytest.approx((26 / 3) ** 0.5 / 2)
    assert str(found) == "94.00 ± 1.47"
    assert str(seed_mean([3.0])) == "3.00"
    assert seed_mean([]) is None


def test_seeds_are_compared_with_themselves():
    # Differences of 1, 2 and 3, whatever else the seeds do; seed 7 has no counterpart.
    found = paired({0: 51.0, 1: 72.0, 2: 93.0, 7: 0.0}, {2: 90.0, 1: 70.0, 0: 50.0, 8: 100.0})
    assert found.mean == 2
    assert found.stderr == pytest.approx(1 / 3**0.5)
    assert found.in_errors == pytest.approx(2 * 3**0.5)
    assert paired({0: 1.0}, {1: 1.0}) is None
    assert paired({0: 3.0}, {0: 1.0}).in_errors is None


def test_a_table_of_users():
    users = {"existing": [87.22, 84.9, 2.33], "new": [80.39], "new_over_seeds": [79.5]}
    ours = row([picked(81, 60), picked(92, 62)], {"method": "feddecay"}, users)
    theirs = row([picked(80, 61), picked(90, 64)], state="2 of 3 seeds; not run")
    table = over_users([theirs, ours], {"method": "feddecay"})
    lines = [dict(zip(table.headings, line, strict=True)) for line in table.lines]
    assert [(line["users"], line["method"]) for line in lines] == [
        ("existing", "fedavg"),
        ("existing", "feddecay"),
        ("new", "fedavg"),
        ("new", "feddecay"),
    ]
    first, second, third, fourth = lines
    assert second["published"] == "87.22 (84.90, 2.33)"
    assert fourth["published"] == "80.39"
    assert fourth["of 3 seeds"] == "79.50"
    assert first["measured"] == "85.00 ± 5.00 (2 of 3 seeds; not run)"
    assert first["over seeds"] == "7.07"
    assert first["against feddecay"] == "-1.50 ± 0.50 (-3.0)"  # of -1 and -2
    assert third["against feddecay"] == "+1.50 ± 0.50 (+3.0)"  # of 1 and 2
    assert second["against feddecay"] == "–"  # noqa: RUF001
    assert second["decile"] == "76.50 ± 5.50"
    assert second["not adapted"] == "85.50 ± 5.50"
    assert first["against feddecay, not adapted"] == "-1.50 ± 0.50 (-3.0)"
    assert fourth["not adapted"] == "40.00 ± 0.00"
    assert fourth["decile"] == fourth["deviation"] == "–"  # noqa: RUF001 # of a single new user
    assert (first["round"], first["bytes"], first["FLOP"]) == ("5", "1 MB", "2 G")


def test_what_is_written_of_the_seeds():
    found = row([picked(80, 60), picked(90, 64)]).as_dict()["users"]
    assert found["adapted"]["mean"] == pytest.approx({"mean": 85, "stderr": 5, "std": 50**0.5})
    assert found["after"]["mean"]["mean"] == 62
    assert row([]).as_dict()["users"] is None


def test_settings_are_picked_by_validation():
    better_tested = row([picked(99, validation=70), picked(99, validation=72)], {"method": "fedavg", "rate": "0.1"})
    better = row([picked(50, validation=73), picked(50, validation=71)], {"method": "fedavg", "rate": "0.5"})
    alike = row([picked(98, validation=72)], {"method": "fedavg", "rate": "1"})
    missing = row([], {"method": "fedavg", "rate": "2"}, state="not run")
    other = row([picked(1, validation=1)], {"method": "ditto", "rate": "0.1"})
    rows = [better_tested, better, alike, missing, other]
    assert picks(rows) == {"fedavg": better, "ditto": other}
    table = validated(rows)
    assert [line[-1] for line in table.lines] == ["–", "picked", "–", "–", "picked"]  # noqa: RUF001
    assert table.lines[1][:4] == ["fedavg", "0.5", "72.00 ± 1.00", "1.41"]
    assert not any("99" in cell or "50.0" in cell for line in table.lines for cell in line)
