"""Optuna's part: what is tried next, whether a trial goes on, and the file that remembers those that ended."""

from pathlib import Path
from typing import Any

from coterie import streams
from coterie.errors import UserError
from coterie.lab.sweep.space import OneOf, Point, Range, Space
from coterie.lab.sweep.trial import State, Trial
from coterie.storage.files import write_atomically

try:
    import optuna
    from optuna.storages.journal import JournalFileBackend, JournalStorage
except ImportError:
    raise UserError("coterie sweep needs Optuna, which is not installed: pip install 'coterie[sweep]'") from None

Pruner = optuna.pruners.BasePruner
NAME = "coterie"
"""Of the study; the brackets that Hyperband puts trials into depend on it."""
REDUCTION = 3
"""One of so many trials goes on from one rung of Hyperband to the next."""


class Study:
    """Only trials that ended are in the journal, each by one line. The one that runs is in memory, and everything that
    is drawn or decided for it depends on the seed, its number and those that ended: killed at whatever point, it is
    drawn anew, with the same values, and judged by the same rules."""

    def __init__(self, path: Path, space: Space, grid: list[Point] | None, seed: int, data: str) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._space, self._grid, self._seed = space, grid, seed
        self._distributions = {key: _distribution(axis) for key, axis in space.axes.items()}
        self._running: optuna.Trial | None = None
        self._live = optuna.create_study(study_name=NAME, direction="maximize")
        try:
            self._journal = _journal(path)
            self._live.add_trials(self._journal.trials)
        except (ValueError, KeyError) as error:
            raise UserError(f"{path} is damaged ({error}); start the sweep anew in another folder") from None
        if self._journal.user_attrs.setdefault("data", data) != data:
            raise UserError(f"{path.parent} was begun on other data; choose another --out")
        self._journal.set_user_attr("data", data)

    @property
    def ended(self) -> list[Trial]:
        return [self._trial(frozen) for frozen in self._journal.trials]

    def begin(self) -> tuple[int, Point]:
        """The next trial's number and values."""
        number = len(self._live.trials)
        if self._grid is not None:
            point = self._grid[number]
            self._live.enqueue_trial({key: self._coded(key, value) for key, value in point.items()})
        else:
            # A sampler of its own for each trial: one that is carried along would not survive a restart.
            self._live.sampler = optuna.samplers.TPESampler(seed=streams.key(self._seed, "sweep", number) % 2**32)
        self._running = self._live.ask(self._distributions)
        return number, self._values(self._running.params)

    def report(self, index: int, score: float) -> None:
        assert self._running is not None
        self._running.report(score, index)

    def is_behind(self, pruner: Pruner) -> bool:
        """Whether the running trial is to be given up, after what was reported last."""
        return pruner.prune(self._live, self._live.trials[-1])

    def end(self, state: State, score: float | None = None, remark: str = "") -> Trial:
        """The running trial, into the journal. For TPE one that diverged or failed is like one that was pruned: what
        Optuna calls failed it forgets, and would try again nearby."""
        assert self._running is not None
        self._running.set_user_attr("state", state)
        self._running.set_user_attr("remark", remark)
        how = optuna.trial.TrialState.COMPLETE if state == "complete" else optuna.trial.TrialState.PRUNED
        self._live.tell(self._running, score, state=how)
        self._journal.add_trial(self._live.trials[-1])
        self._running = None
        return self.ended[-1]

    def _trial(self, frozen: optuna.trial.FrozenTrial) -> Trial:
        state: State = frozen.user_attrs["state"]
        return Trial(
            frozen.number,
            state,
            self._values(frozen.params),
            frozen.value if state == "complete" else None,
            dict(sorted(frozen.intermediate_values.items())),
            frozen.user_attrs["remark"],
        )

    def _values(self, params: dict[str, Any]) -> Point:
        """Of a list Optuna sees the places only: it takes no lists as values, and tells 1 from true no more than from
        1.0."""
        axes = self._space.axes
        return {key: axis.values[params[key]] if isinstance(axis := axes[key], OneOf) else params[key] for key in axes}

    def _coded(self, key: str, value: Any) -> Any:
        axis = self._space.axes[key]
        return axis.values.index(value) if isinstance(axis, OneOf) else value


def hyperband(first: int, rounds: int) -> Pruner:
    """Judges at rounds first, 3 first, 9 first, ...; some trials are spared the first of these."""
    return optuna.pruners.HyperbandPruner(min(first, rounds), rounds, REDUCTION)


def _journal(path: Path) -> optuna.Study:
    if path.exists() and not (content := path.read_bytes()).endswith(b"\n"):
        write_atomically(path, content[: content.rfind(b"\n") + 1])  # a line that did not get to its end
    storage = JournalStorage(JournalFileBackend(str(path)))
    return optuna.create_study(storage=storage, study_name=NAME, direction="maximize", load_if_exists=True)


def _distribution(axis: OneOf | Range) -> optuna.distributions.BaseDistribution:
    if isinstance(axis, OneOf):
        return optuna.distributions.CategoricalDistribution(range(len(axis.values)))
    if isinstance(axis.low, int) and isinstance(axis.high, int):
        return optuna.distributions.IntDistribution(axis.low, axis.high, axis.log)
    return optuna.distributions.FloatDistribution(axis.low, axis.high, axis.log)
