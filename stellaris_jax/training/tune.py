"""A search for better settings: Optuna proposes, populations try, and what does not promise enough is stopped early.

The directory of a search holds one run per trial, named by its number, Optuna's storage (`study.db`), and `tune.yaml`,
what was asked for. Trials are trained beside each other and share programs; all have the same seeds, so only their
settings differ. Asynchronous successive halving (Li et al. 2020) compares trials after a ninth and a third of their
evaluations, and ends those that are not among the best third there; their places are free for the next ones.
"""

from __future__ import annotations

import csv
import io
import json
import math
import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import optuna
from omegaconf import OmegaConf
from rich.console import Console

from stellaris_jax.config import inputs
from stellaris_jax.config.commands import command, path_argument
from stellaris_jax.config.outputs import refuse_links, write_atomically
from stellaris_jax.config.schema import ConfigError, RunError
from stellaris_jax.config.sqlite import check_database
from stellaris_jax.config.stored import from_yaml, read_yaml
from stellaris_jax.config.tree import Config
from stellaris_jax.config.trust import Trust, admit, check_adds_nothing
from stellaris_jax.report.runs import planned_evaluations
from stellaris_jax.report.search import Trial
from stellaris_jax.report.telemetry.format import significant
from stellaris_jax.report.telemetry.jsonl import complain
from stellaris_jax.report.telemetry.together import PointDisplay, Together
from stellaris_jax.training.executors import check_installed
from stellaris_jax.training.footprint import beside
from stellaris_jax.training.loading import checked
from stellaris_jax.training.plans import SHARED, Plans
from stellaris_jax.training.programs import Programs
from stellaris_jax.training.records import Record
from stellaris_jax.training.run import train_within
from stellaris_jax.training.rundir import run_directory, store, writing
from stellaris_jax.training.session import Interrupted
from stellaris_jax.training.signals import Signals
from stellaris_jax.training.space import Space, Values
from stellaris_jax.training.together import in_threads, stoppable

ABOUT, STORAGE = "tune.yaml", "study.db"


@dataclass(frozen=True)
class Search:
    """What a search is asked for.

    trials: how many settings are tried. reduction: one of so many goes on at every rung; 0 lets all run to their end.
    seed: of the sampler.
    """

    trials: int = 32
    reduction: int = 3
    seed: int = 0


def begin(directory: Path, config: Config, space: Path, search: Search) -> None:
    """Lay out a new search.

    Args:
      directory: a new one, or empty.
      config: what is tuned; its own values are the first trial's.
      space: the file of the space.
      search: how.

    Raises:
      ConfigError: the directory holds something, or the space does not fit the configuration.
      RunError: it cannot be written.
    """
    check_installed(config)
    Space.read(space, config)
    if directory.is_dir() and any(directory.iterdir()):
        raise ConfigError(f"{directory} is not empty; name another directory, or go on with a search by --resume.")
    with writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
        store(config, directory)
        write_atomically(directory / "space.yaml", inputs.read_text(space, inputs.CONFIGURATION))
        write_atomically(directory / ABOUT, OmegaConf.to_yaml(OmegaConf.create(asdict(search))))


def opened(
    directory: Path, trials: int | None = None, trust: Trust = False
) -> tuple[Config, Space, Search, optuna.Study]:
    """A search that has been laid out, with another number of trials where one is given. Raises ConfigError."""
    if not (directory / ABOUT).is_file():
        raise ConfigError(f"{directory} holds no search: there is no {directory / ABOUT}.")
    about: Values = {str(key): value for key, value in read_yaml(directory / ABOUT).items()}
    try:
        search = Search(**{**about, **({} if trials is None else {"trials": trials})})
    except TypeError:
        raise ConfigError(f"{directory / ABOUT} is not what a search was begun with.") from None
    path = directory / "config.yaml"
    config = checked(admit(from_yaml(path), path, trust, training=True))
    return config, Space.read(directory / "space.yaml", config), search, _study(directory, config, search)


def _study(directory: Path, config: Config, search: Search) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    pruner: optuna.pruners.BasePruner = optuna.pruners.NopPruner()
    if search.reduction:
        first = max(1, config.evaluation.points // search.reduction**2)
        pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=first, reduction_factor=search.reduction)
    try:
        if (directory / STORAGE).exists():
            inputs.open_regular(directory / STORAGE).close()
        check_database(directory / STORAGE)
    except OSError as error:
        raise ConfigError(f"{directory / STORAGE} cannot be used: {inputs.reason(error)}.") from None
    storage = optuna.storages.RDBStorage(f"sqlite:///{(directory / STORAGE).absolute()}")
    study = optuna.create_study(
        storage=storage, study_name="tune", direction="maximize", pruner=pruner, load_if_exists=True
    )
    # A search that goes on must not propose again what it began with.
    study.sampler = optuna.samplers.TPESampler(seed=search.seed + len(study.trials))
    return study


def tune(directory: Path, trials: int | None = None, trust: Trust = False) -> optuna.Study:
    """Go on with a search until its trials are over; those under way when it was stopped go on where they were.

    Args:
      directory: of a search that has been laid out (`begin`).
      trials: another number of them than it was begun with.
      trust: what of the search may be imported and connected to (see `config.trust`).

    Raises:
      Interrupted: after a signal, with everything saved; Abandoned after a second one.
      RunError: no trial has a result.
    """
    config, space, search, study = opened(directory, trials, trust)
    defaults = space.of(config)
    if defaults is not None and not study.trials:
        study.enqueue_trial(defaults)
    done = {trial.number for trial in study.trials if trial.state.is_finished()}
    steps = [config.total_steps * config.num_seeds] * max(search.trials, len(study.trials))
    with closing(Together(Console(), steps, done, config.run.progress, unit="trials")) as display:

        def farewell() -> str:
            goes_on = f"{command('tune')} --resume {path_argument(directory)}"
            return f"stopped; {len(display.done)} of {len(steps)} trials are over; continue with: {goes_on}"

        with stoppable(display, directory, farewell) as signals:
            work = _Trials(directory, config, space, search, study, display, signals)
            in_threads(beside([config]), "trials", work.worker)
    if work.error is not None:
        raise work.error
    if not any(trial.state == optuna.trial.TrialState.COMPLETE for trial in study.trials):
        raise RunError(f"{directory}: no trial has a result.")
    return study


class _Trials:
    """The trials of a search, each of them in a thread, as many as there are cores and memory for."""

    def __init__(
        self,
        directory: Path,
        config: Config,
        space: Space,
        search: Search,
        study: optuna.Study,
        display: Together,
        signals: Signals,
    ):
        self.directory, self.config, self.space, self.search = directory, config, space, search
        self.study, self.display, self.signals = study, display, signals
        self.error: BaseException | None = None
        self._programs = Programs(Plans(SHARED))
        self._lock = threading.Lock()
        running = [trial for trial in study.trials if trial.state == optuna.trial.TrialState.RUNNING]
        self._stopped = [optuna.Trial(study, trial._trial_id) for trial in running]

    def worker(self) -> None:
        """Run trials until there are no more; raises what ends the process only."""
        while not (self.signals.stopping.is_set() or self.error):
            with self._lock:
                trial = self._next()
            if trial is None:
                return
            try:
                self._run(trial)
            except Interrupted:
                return
            except (ConfigError, RunError) as error:
                complain(f"error: trial {trial.number}: {error}")
                self._tell(trial, None)
            except (Exception, SystemExit) as error:
                complain(f"error: trial {trial.number} failed: {type(error).__name__}: {error}")
                self._tell(trial, None)
                self.error = self.error or error
            self.display.finished(trial.number)

    def _next(self) -> optuna.Trial | None:
        if self._stopped:
            return self._stopped.pop(0)
        states = [trial.state for trial in self.study.trials]
        begun = sum(state != optuna.trial.TrialState.WAITING for state in states)
        return self.study.ask() if begun < self.search.trials else None

    def _run(self, trial: optuna.Trial) -> None:
        """Train a trial's setting, or go on with it, and tell what has come of it."""
        values = self.space.suggest(trial)
        place = self.directory / str(trial.number)
        with writing(self.directory):
            refuse_links(place)
        if not (place / "config.yaml").is_file():
            config = self.config.replace(values)
            check_adds_nothing(config, self.config, f"trial {trial.number} of {self.directory}")
            config = checked(config)  # a combination may be impossible where each value is not
            with writing(place):
                place.mkdir(exist_ok=True)  # without parents: the search may have been moved
                store(config, place)
        config = from_yaml(place / "config.yaml").replace({"resume": str(place), "run.dir": str(place)})
        check_adds_nothing(config, self.config, str(place / "config.yaml"))
        config = checked(config)
        display = PointDisplay(self.display, trial.number, config.rounds, config.num_seeds)
        pruned = _Pruned(trial, planned_evaluations(config.rounds, config.evaluation.points))
        with run_directory(config) as run_dir:
            summary = train_within(run_dir, config, display, self.signals, self._programs, watch=pruned)
        self._tell(trial, summary["eval_return_mean"], pruned.ended)

    def _tell(self, trial: optuna.Trial, value: float | None, pruned: bool = False) -> None:
        states = optuna.trial.TrialState
        with self._lock:
            if value is None or not math.isfinite(value):
                self.study.tell(trial, state=states.FAIL)
            elif pruned:
                self.study.tell(trial, state=states.PRUNED)
            else:
                self.study.tell(trial, value)


class _Pruned:
    """Reports every evaluation of a trial, and answers whether it shall end.

    Its rungs are the planned evaluations, so those of a trial that was stopped, or whose metrics are damaged, are those
    of one that was not.
    """

    def __init__(self, trial: optuna.Trial, planned: Sequence[int]):
        self.trial, self.planned, self.ended = trial, planned, False
        self.told = set(trial.study.get_trials(deepcopy=False)[trial.number].intermediate_values)

    def __call__(self, record: Record) -> bool:
        rung = sum(number < record["round"] for number in self.planned) + 1
        value = record["eval_return_mean"]
        if value is None or not math.isfinite(value):
            self.ended = True
        else:
            if rung not in self.told:  # as it is where the run was stopped right after
                self.trial.report(value, rung)
            self.ended = rung < len(self.planned) and self.trial.should_prune()
        return self.ended


def report(directory: Path, study: optuna.Study) -> list[Path]:
    """Write `best.yaml`, `trials.csv`, and pictures of the search and of what mattered in it; returns their paths."""
    from stellaris_jax.report.curves import save
    from stellaris_jax.report.search import history_figure, importance_figure

    complete = optuna.trial.TrialState.COMPLETE
    shown = [Trial(one.number, _returns(one), one.state == complete) for one in study.trials]
    best, written = study.best_trial, [directory / "best.yaml", directory / "trials.csv"]
    text = "".join(f"{key}: {json.dumps(value)}\n" for key, value in best.params.items())
    with writing(directory):
        note = f"# Trial {best.number} of {len(study.trials)}: return {significant(best.value)}.\n"
        write_atomically(written[0], note + text)
        write_atomically(written[1], _table(study))
        written.append(save(history_figure(shown), directory / "history.png"))
        values = [trial.value for trial in study.trials if trial.state == complete]
        if len(values) >= FEWEST and len(set(values)) > 1 and len(best.params) > 1:
            evaluator = optuna.importance.PedAnovaImportanceEvaluator()
            shares = optuna.importance.get_param_importances(study, evaluator=evaluator)
            written.append(save(importance_figure(shares, len(values)), directory / "importance.png"))
    return written


def _returns(trial: optuna.trial.FrozenTrial) -> list[float]:
    """Those of its evaluations, oldest first."""
    return [value for _, value in sorted(trial.intermediate_values.items())]


def _table(study: optuna.Study) -> str:
    keys = sorted({key for trial in study.trials for key in trial.params})
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["trial", "state", "return", "evaluations", *keys])
    for trial in study.trials:
        returns = _returns(trial)
        last = str(returns[-1]) if returns else ""
        settings = [trial.params.get(key, "") for key in keys]
        rows.writerow([trial.number, trial.state.name.lower(), last, len(returns), *settings])
    return text.getvalue()


FEWEST = 8
"""Trials that ran to their end, below which nothing is said of what mattered."""
