"""The part of Optuna in a sweep: which values to try next, whether to stop a trial, and the journal of ended trials."""

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
    raise UserError("coterie sweep needs Optuna, which is not installed; run: pip install 'coterie[sweep]'") from None

Pruner = optuna.pruners.BasePruner
NAME = "coterie"
"""Name of the study. Hyperband assigns trials to brackets by this name."""
REDUCTION = 3
"""Hyperband keeps one of this many trials from one rung to the next."""


class Study:
    """A study whose journal has one line for each ended trial.

    The running trial is only in memory. Its values and all decisions about it depend on the seed, its number and the
    ended trials. If the process is killed, the trial is started again with the same values and judged in the same way.
    """

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
            raise UserError(f"{path} is damaged ({error}); start the sweep again in another folder") from None
        if self._journal.user_attrs.setdefault("data", data) != data:
            raise UserError(f"the sweep in {path.parent} uses other data; choose another --out")
        self._journal.set_user_attr("data", data)

    @property
    def ended(self) -> list[Trial]:
        """Trials that ended, in the order in which they started."""
        return [self._trial(frozen) for frozen in self._journal.trials]

    def begin(self) -> tuple[int, Point]:
        """Start the next trial. Returns its number and its values."""
        number = len(self._live.trials)
        if self._grid is not None:
            point = self._grid[number]
            self._live.enqueue_trial({key: self._coded(key, value) for key, value in point.items()})
        else:
            # Each trial has its own sampler, because the state of a sampler would not survive a restart.
            self._live.sampler = optuna.samplers.TPESampler(seed=streams.key(self._seed, "sweep", number) % 2**32)
        self._running = self._live.ask(self._distributions)
        return number, self._values(self._running.params)

    def report(self, index: int, score: float) -> None:
        """Report the score of the running trial after round `index`."""
        assert self._running is not None
        self._running.report(score, index)

    def is_behind(self, pruner: Pruner) -> bool:
        """Return whether to stop the running trial, given the scores reported so far."""
        return pruner.prune(self._live, self._live.trials[-1])

    def end(self, state: State, score: float | None = None, remark: str = "") -> Trial:
        """End the running trial and add it to the journal.

        Diverged and failed trials count as pruned for TPE. Optuna ignores trials that it knows as failed, and would try
        similar values again.
        """
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
        """Return the values of Optuna's parameters. For a list, Optuna only knows the position of the value.

        It does not accept lists as values, and it does not distinguish 1, 1.0 and true.
        """
        axes = self._space.axes
        return {key: axis.values[params[key]] if isinstance(axis := axes[key], OneOf) else params[key] for key in axes}

    def _coded(self, key: str, value: Any) -> Any:
        axis = self._space.axes[key]
        return axis.values.index(value) if isinstance(axis, OneOf) else value


def hyperband(first: int, rounds: int) -> Pruner:
    """Return a pruner that judges at rounds `first`, 3 `first`, 9 `first` and so on. Some trials skip the first."""
    return optuna.pruners.HyperbandPruner(min(first, rounds), rounds, REDUCTION)


def _journal(path: Path) -> optuna.Study:
    if path.exists() and not (content := path.read_bytes()).endswith(b"\n"):
        write_atomically(path, content[: content.rfind(b"\n") + 1])  # the last line is incomplete
    storage = JournalStorage(JournalFileBackend(str(path)))
    return optuna.create_study(storage=storage, study_name=NAME, direction="maximize", load_if_exists=True)


def _distribution(axis: OneOf | Range) -> optuna.distributions.BaseDistribution:
    if isinstance(axis, OneOf):
        return optuna.distributions.CategoricalDistribution(range(len(axis.values)))
    if isinstance(axis.low, int) and isinstance(axis.high, int):
        return optuna.distributions.IntDistribution(axis.low, axis.high, axis.log)
    return optuna.distributions.FloatDistribution(axis.low, axis.high, axis.log)
