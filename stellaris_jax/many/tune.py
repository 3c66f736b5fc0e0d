"""Search for better settings: Optuna proposes, concurrent trials train, and weak trials are stopped early.

The directory of a search holds one run per trial, named by its number, Optuna's storage (`study.db`), and the search's
options (`tune.yaml`). Trials run concurrently and share programs. All have the same seeds, so only their settings
differ. Asynchronous successive halving (Li et al. 2020) compares trials after a ninth and a third of their evaluations.
It ends trials that are not among the best third there; new trials take their places. With one trial at a time, a search
that was killed and resumed proposes and finds the same as an uninterrupted one.
"""

from __future__ import annotations

import csv
import io
import json
import math
import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import optuna
from rich.console import Console

from stellaris_jax.base import inputs
from stellaris_jax.base.errors import ConfigError, RunError
from stellaris_jax.base.outputs import refuse_links, write_atomically
from stellaris_jax.config.old_options import renamed
from stellaris_jax.config.schema import flatten, plain
from stellaris_jax.config.stored import from_yaml
from stellaris_jax.config.tree import Config
from stellaris_jax.config.trust import Trust, check_adds_nothing
from stellaris_jax.engine.chunk_cache import SHARED, ChunkCache
from stellaris_jax.engine.program_cache import ProgramCache
from stellaris_jax.execute.footprint import max_concurrent_runs
from stellaris_jax.execute.loading import checked
from stellaris_jax.execute.records import Record
from stellaris_jax.execute.run import train_within
from stellaris_jax.execute.session import Interrupted
from stellaris_jax.many.choose.objective import Goal
from stellaris_jax.many.concurrency import in_threads, is_of_disk, stoppable
from stellaris_jax.many.proposals import Halving
from stellaris_jax.many.score import score
from stellaris_jax.many.score import shown as in_words
from stellaris_jax.many.search_check import TO_THE_END, check_settings, corrected, rung_of
from stellaris_jax.many.search_store import Search, StoreError, open_search, rebuild, resume_command, storing, study_of
from stellaris_jax.many.space import Space
from stellaris_jax.report.runs import planned_evaluations
from stellaris_jax.report.search import Trial
from stellaris_jax.runs.checkpoint import CheckpointError
from stellaris_jax.runs.run_dir import run_directory, store, writing
from stellaris_jax.runs.signals import Signals
from stellaris_jax.telemetry.jsonl import warn_on_stderr
from stellaris_jax.telemetry.shared_display import PointDisplay, SharedDisplay


def tune(directory: Path, trials: int | None = None, trust: Trust = False, parallel: int | None = None) -> optuna.Study:
    """Continue a search until its trials are over; interrupted trials resume where they stopped.

    Args:
      directory: directory of a search made by `begin`.
      trials: replaces the search's number of trials.
      trust: plug-ins, modules and services that the search may import or connect to (see `config.trust`).
      parallel: largest number of concurrent trials; by default as many as cores and memory allow.

    Raises:
      Interrupted: a signal arrived and everything was saved; Abandoned after a second one.
      RunError: no trial has a result.
    """
    config, space, search, study = open_search(directory, trials, trust)
    corrections = corrected(directory, config, study, search.goal)
    if corrections is not None:
        rebuild(directory, study, corrections)
        study = study_of(directory, search)
    defaults = space.of(config)
    with storing(directory):
        if defaults is not None and not study.trials:
            study.enqueue_trial(defaults)
        done = {trial.number for trial in study.trials if trial.state.is_finished()}
        count = max(search.trials, len(study.trials))
    steps = [config.total_steps * config.num_seeds] * count
    with closing(SharedDisplay(Console(), steps, done, config.run.progress, unit="trials")) as display:

        def farewell() -> str:
            resume = resume_command(directory)
            return f"stopped; {len(display.done)} of {len(steps)} trials are over; continue with: {resume}"

        with stoppable(display, directory, farewell) as signals:
            work = _Trials(directory, config, space, search, study, display, signals)
            workers = max_concurrent_runs([config])
            in_threads(workers if parallel is None else min(workers, parallel), "trials", work.worker)
    if work.error is not None:
        raise work.error
    with storing(directory):
        results = [trial for trial in study.trials if trial.state == optuna.trial.TrialState.COMPLETE]
    if not results:
        raise RunError(f"{directory}: no trial has a result.")
    return study


def unfinished(study: optuna.Study) -> list[int]:
    """Numbers of the trials that could not be resumed, although the search is over."""
    return [trial.number for trial in study.trials if trial.state == optuna.trial.TrialState.RUNNING]


class _Trials:
    """Trials of a search, one per thread, as many at a time as cores and memory allow."""

    def __init__(
        self,
        directory: Path,
        config: Config,
        space: Space,
        search: Search,
        study: optuna.Study,
        display: SharedDisplay,
        signals: Signals,
    ):
        self.directory, self.config, self.space, self.search = directory, config, space, search
        self.study, self.display, self.signals = study, display, signals
        self.error: BaseException | None = None
        self._programs = ProgramCache(ChunkCache(SHARED))
        self._lock = threading.Lock()
        running = [trial for trial in study.trials if trial.state == optuna.trial.TrialState.RUNNING]
        self._stopped = [optuna.Trial(study, trial._trial_id) for trial in running]

    def worker(self) -> None:
        """Run trials until none are left; raises only errors that end the process."""
        while not (self.signals.stopping.is_set() or self.error):
            try:
                with self._lock, storing(self.directory):
                    trial = self._next()
                if trial is None:
                    return
                self._try(trial)
            except Interrupted:
                return
            except StoreError as error:
                self.error = self.error or error
                return
            self.display.finished(trial.number)

    def _try(self, trial: optuna.Trial) -> None:
        """Run a trial and record a failure. Raises Interrupted, and StoreError if the disk has failed."""
        has_begun = (self.directory / str(trial.number) / "config.yaml").is_file()
        try:
            self._run(trial)
        except (Interrupted, StoreError):
            raise
        except (Exception, SystemExit) as error:
            if is_of_disk(error):
                resume = f"continue with: {resume_command(self.directory)}"
                cause = inputs.reason(error) if isinstance(error, Exception) else error
                raise StoreError(f"trial {trial.number}: {cause}. Make room, then {resume}") from error
            if isinstance(error, ConfigError | RunError):
                warn_on_stderr(f"error: trial {trial.number}: {error}")
                if has_begun and isinstance(error, ConfigError | CheckpointError):
                    return  # its files are damaged or in use by another process; its setting is not at fault
            else:
                warn_on_stderr(f"error: trial {trial.number} failed: {type(error).__name__}: {error}")
                self.error = self.error or error
            self._tell(trial, None)

    def _next(self) -> optuna.Trial | None:
        if self._stopped:
            return self._stopped.pop(0)
        states = [trial.state for trial in self.study.trials]
        started = sum(state != optuna.trial.TrialState.WAITING for state in states)
        return self.study.ask() if started < self.search.trials else None

    def _run(self, trial: optuna.Trial) -> None:
        """Train a trial's setting, or resume it, and report the result to the study."""
        with storing(self.directory):
            values = self.space.suggest(trial)
        place = self.directory / str(trial.number)
        with writing(self.directory):
            refuse_links(place)
        if not (place / "config.yaml").is_file():
            config = self.config.replace(renamed(values, self.config))
            check_adds_nothing(config, self.config, f"trial {trial.number} of {self.directory}")
            config = checked(config)  # a combination may be impossible although each value is possible
            with writing(place):
                place.mkdir(exist_ok=True)  # without parents, because the search may have been moved
                store(config, place)
        stored = from_yaml(place / "config.yaml")
        check_settings(place, flatten(plain(stored)), self.config, values)
        config = stored.replace({"resume": str(place), "run.dir": str(place)})
        check_adds_nothing(config, self.config, str(place / "config.yaml"))
        config = checked(config)
        display = PointDisplay(self.display, trial.number, config.rounds, config.num_seeds)
        with storing(self.directory):
            planned = planned_evaluations(config.rounds, config.evaluation.points)
            halving = Halving(self.search.reduction, len(planned), config.evaluation.points)
            pruned = _Pruned(trial, planned, halving, self.directory, self.search.goal)
        with run_directory(config) as run_dir:
            summary = train_within(run_dir, config, display, self.signals, self._programs, watch=pruned)
        goal = self.search.goal
        value = summary["eval_return_mean"] if goal.target is None else score(pruned.rows, goal)
        self._tell(trial, value, pruned.ended)

    def _tell(self, trial: optuna.Trial, value: float | None, pruned: bool = False) -> None:
        states = optuna.trial.TrialState
        with self._lock, storing(self.directory):
            if value is None or not math.isfinite(value):
                self.study.tell(trial, state=states.FAIL)
            elif pruned:
                self.study.tell(trial, state=states.PRUNED)
            else:
                self.study.tell(trial, value)


class _Pruned:
    """Watcher of a trial: reports every evaluation to the study and decides whether the trial ends.

    Rungs are planned evaluations. So a resumed trial, or one with damaged metrics, has the same rungs as any other.
    """

    def __init__(
        self,
        trial: optuna.Trial,
        planned: Sequence[int],
        halving: Halving,
        directory: Path,
        goal: Goal = Goal("return"),  # noqa: B008  (a named tuple)
    ):
        self.trial, self.planned, self.halving, self.directory, self.goal = trial, planned, halving, directory, goal
        self.ended = False
        self.rows: list[Record] = []
        self.reported = dict(trial.study.get_trials(deepcopy=False)[trial.number].intermediate_values)

    def __call__(self, row: Record) -> bool:
        rung = rung_of(row, self.planned)
        value = row["eval_return_mean"]
        if value is None or not math.isfinite(value):
            self.ended = True
        else:
            self.rows.append(row)
            with storing(self.directory):
                if rung not in self.reported:  # already reported if the run was stopped right after
                    self.reported[rung] = score(self.rows, self.goal)
                    self.trial.report(self.reported[rung], rung)
                self.ended = not (TO_THE_END in self.trial.user_attrs or self._goes_on(rung))
        return self.ended

    def _goes_on(self, rung: int) -> bool:
        returns = {number: value for number, value in self.reported.items() if number <= rung}
        trials = self.trial.study.get_trials(deepcopy=False)
        return self.halving.goes_on(returns, [t.intermediate_values for t in trials if t.number != self.trial.number])


def report(directory: Path, study: optuna.Study, goal: Goal = Goal("return")) -> list[Path]:  # noqa: B008
    """Write `best.yaml`, `trials.csv` and figures of history and of importance of settings; returns the paths."""
    from stellaris_jax.report.curves import save
    from stellaris_jax.report.search import history_figure, importance_figure

    complete = optuna.trial.TrialState.COMPLETE
    shown = [Trial(trial.number, _returns(trial), trial.state == complete) for trial in study.trials]
    best, written = study.best_trial, [directory / "best.yaml", directory / "trials.csv"]
    text = "".join(f"{key}: {json.dumps(value)}\n" for key, value in best.params.items())
    with writing(directory):
        note = f"# Trial {best.number} of {len(study.trials)}: {in_words(study.best_value, goal)}.\n"
        write_atomically(written[0], note + text)
        write_atomically(written[1], _table(study, goal))
        written.append(save(history_figure(shown), directory / "history.png"))
        values = [trial.value for trial in study.trials if trial.state == complete]
        if len(values) >= FEWEST and len(set(values)) > 1 and len(best.params) > 1:
            evaluator = optuna.importance.PedAnovaImportanceEvaluator()
            shares = optuna.importance.get_param_importances(study, evaluator=evaluator)
            written.append(save(importance_figure(shares, len(values)), directory / "importance.png"))
    return written


def _returns(trial: optuna.trial.FrozenTrial) -> list[float]:
    """Returns of a trial's evaluations, oldest first."""
    return [value for _, value in sorted(trial.intermediate_values.items())]


def _table(study: optuna.Study, goal: Goal) -> str:
    keys, incomplete = sorted({key for trial in study.trials for key in trial.params}), unfinished(study)
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["trial", "state", "return" if goal.target is None else "score", "evaluations", *keys])
    for trial in study.trials:
        returns = _returns(trial)
        last = str(returns[-1]) if returns else ""
        settings = [trial.params.get(key, "") for key in keys]
        state = "incomplete" if trial.number in incomplete else trial.state.name.lower()
        rows.writerow([trial.number, state, last, len(returns), *settings])
    return text.getvalue()


FEWEST = 8
"""Smallest number of completed trials for a figure of the settings' importance."""
