"""Sweeps: many trials of one recipe, each a run in its own folder. Validation examples decide which trial is best."""

import json
import math
import shutil
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tomli_w
from filelock import FileLock, Timeout

from coterie import registry
from coterie.errors import DivergedError, UserError
from coterie.lab.sweep.outcome import Outcome, tables
from coterie.lab.sweep.page import sweep_page
from coterie.lab.sweep.space import Point, Space, SweepSettings
from coterie.lab.sweep.study import Pruner, Study, hyperband
from coterie.lab.sweep.trial import Trial, complete, folder_of
from coterie.measure.protocols import CHOOSES
from coterie.measure.record import Evaluated, Record
from coterie.measure.summary import Summary
from coterie.prepare import check_validation, prepare
from coterie.recipe import Recipe
from coterie.report.tables import Table
from coterie.report.words import things
from coterie.server.rounds import Rounds
from coterie.storage.files import write_atomically
from coterie.storage.folder import read_summary
from coterie.storage.origin import first_difference, read_origin
from coterie.training import Training

USUAL_TRIALS = 30
"""Default number of TPE trials."""


class Sweep:
    """A sweep that is ready to start or to continue. The constructor finds all errors before any work starts."""

    def __init__(self, recipe: Recipe, settings: SweepSettings, out: Path) -> None:
        self.recipe, self.settings, self.out = recipe, settings, out
        self.space = Space.of(settings.space)
        self.space.check(recipe)
        grid = self.space.combinations(recipe.run.seed) if settings.search == "grid" else None
        if grid and settings.trials is not None:
            raise UserError(f"a grid tries all of its {len(grid)} combinations; omit --trials, or use --search tpe")
        if recipe.run.rounds == 0:
            raise UserError("run.rounds = 0: a sweep needs at least 1 round, as trials differ only by their training")
        self.total = len(grid) if grid else settings.trials or USUAL_TRIALS
        self.federation = recipe.federation()
        prepare(self.space.recipe(recipe, self.space.first()), self.federation).clients.close()
        check_validation(self.federation, f'sweep.protocol = "{settings.protocol}"', CHOOSES[settings.protocol].group)
        self._lock = _hold(out, self._identity())
        self._study = Study(out / "study.log", self.space, grid, recipe.run.seed, self.federation.fingerprint())
        self._pruner = hyperband(recipe.run.eval_every, recipe.run.rounds) if settings.prune else None

    @property
    def trials(self) -> list[Trial]:
        """Trials that ended."""
        return self._study.ended

    def play(
        self,
        on_begin: Callable[[int, Point], object],
        on_round: Callable[[Record], object],
        should_stop: Callable[[], bool],
    ) -> Iterator[Trial]:
        """Run the remaining trials and yield each of them when it ends. Raises KeyboardInterrupt when told to stop."""
        while len(self.trials) < self.total:
            if should_stop():
                raise KeyboardInterrupt
            number, point = self._study.begin()
            on_begin(number, point)
            yield self._try(self.out / folder_of(number), point, on_round, should_stop)

    def report(self) -> list[Table]:
        """Return tables of all trials so far. Also writes trials.json, table.md, page.html and best.toml."""
        ranked, score = complete(self.trials), self.federation.objective.score
        summary, best = None, None
        if ranked:
            folder = self.out / ranked[0].folder
            summary, best = read_summary(folder), read_origin(folder).recipe
            title = (
                f"# The best of {things(len(ranked), 'complete trial')} of {self.out.name}, "
                f"by {score} on validation examples.\n"
            )
            write_atomically(self.out / "best.toml", (title + tomli_w.dumps(best)).encode())
        found = self._outcome(summary)
        shown = tables(found)
        page = sweep_page(self.out.name, found, best)
        write_atomically(self.out / "trials.json", (json.dumps(found.to_json(), indent=2) + "\n").encode())
        write_atomically(self.out / "table.md", "\n".join(table.markdown() for table in shown).encode())
        write_atomically(self.out / "page.html", page.encode())
        return shown

    def close(self) -> None:
        """Unlock the folder."""
        self._lock.release()

    def _try(
        self, folder: Path, point: Point, on_round: Callable[[Record], object], should_stop: Callable[[], bool]
    ) -> Trial:
        begun = (folder / "recipe.toml").exists()
        if not begun and folder.exists():
            shutil.rmtree(folder)  # the process was killed before the run started
        try:
            recipe = self.space.recipe(self.recipe, point)
            training = Training(recipe, self.federation, folder, resume=begun)
        except UserError as error:
            if begun:
                raise  # the problem is the folder, not the values
            return self._study.end("failed", remark=str(error))
        judged = _Judged(self._study, self._pruner, self.settings.protocol, training.rounds)
        try:
            training.play(on_round, lambda: judged.is_behind() or should_stop())
            if judged.is_behind():
                return self._study.end("pruned")
        except DivergedError as error:
            return self._study.end("diverged", remark=str(error))
        except UserError as error:
            return self._study.end("failed", remark=str(error))
        except KeyboardInterrupt:
            if not judged.gave_up:
                raise
            return self._study.end("pruned")
        return self._study.end("complete", judged.score)

    def _outcome(self, summary: Summary | None) -> Outcome:
        return Outcome(
            data=registry.name_of("data", self.recipe.data),
            method=registry.name_of("method", self.recipe.method),
            seed=self.recipe.run.seed,
            rounds=self.recipe.run.rounds,
            search=self.settings.search,
            protocol=self.settings.protocol,
            score=self.federation.objective.score,
            space=self.settings.space,
            planned=self.total,
            trials=self.trials,
            summary=summary,
        )

    def _identity(self) -> dict[str, Any]:
        """Return everything that must not change when a sweep continues. The number of trials may change."""
        chosen = {key: getattr(self.settings, key) for key in ("search", "protocol", "prune", "space")}
        return {**self.recipe.as_dict(), "sweep": chosen}


class _Judged:
    """Reports each evaluation of a trial to the study once, and remembers the verdict.

    Evaluations come from the history of the run. After an interruption the study therefore sees the same scores as
    without one.
    """

    def __init__(self, study: Study, pruner: Pruner | None, protocol: str, rounds: Rounds) -> None:
        self._study, self._pruner, self._protocol, self._rounds = study, pruner, protocol, rounds
        self._seen = 0
        self.score: float | None = None
        """Validation score at the latest evaluation."""
        self.gave_up = False

    def is_behind(self) -> bool:
        """Judge the evaluations that are new, and return whether to stop the trial."""
        while not self.gave_up and self._seen < len(self._rounds.history):
            record = self._rounds.history[self._seen]
            self._seen += 1
            if record.eval is not None:
                self.score = validation_score(record.round, record.eval, self._protocol)
                self._study.report(record.round, self.score)
                if self._pruner is not None and record.round < self._rounds.num_rounds:
                    self.gave_up = self._study.is_behind(self._pruner)
        return self.gave_up


def validation_score(index: int, evaluated: Evaluated, protocol: str) -> float:
    """Return the mean score over clients on their validation examples, after round `index`."""
    assert evaluated.validation is not None, "a sweep checks first that there are validation examples"
    score = evaluated.validation[CHOOSES[protocol].key].mean
    if score is None or not math.isfinite(score) or evaluated.train_loss is None:
        raise DivergedError(f"round {index}: the loss or the score is not finite; lower the learning rates")
    return score


def _hold(out: Path, identity: dict[str, Any]) -> FileLock:
    """Create or reopen the folder of the sweep, and lock it for this process."""
    written = out / "sweep.toml"
    try:
        if written.exists():
            begun = tomllib.loads(written.read_text())
            sweep = begun.pop("sweep")
            if difference := first_difference({**Recipe.parse(begun).as_dict(), "sweep": sweep}, identity):
                raise UserError(
                    f"{out} holds a sweep with other settings: {difference}; use the same, or choose another --out"
                )
        elif out.exists() and (not out.is_dir() or {file.name for file in out.iterdir()} - {".lock"}):
            raise UserError(f"{out} exists and is not an empty folder; choose another --out")
        out.mkdir(parents=True, exist_ok=True)
        lock = FileLock(out / ".lock")
        lock.acquire(timeout=0)
        write_atomically(written, tomli_w.dumps(identity).encode())
    except Timeout:
        raise UserError(f"{out} is in use by another process; wait for it or stop it") from None
    except OSError as error:
        raise UserError(f"cannot write to the folder {out}: {error.strerror}") from None
    return lock
