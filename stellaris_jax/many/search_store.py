"""Files of a search: `tune.yaml` (its options), `space.yaml`, `config.yaml`, and Optuna's storage `study.db`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import optuna
import yaml
from sqlalchemy.exc import SQLAlchemyError

from stellaris_jax.base import inputs
from stellaris_jax.base.commands import command, path_argument
from stellaris_jax.base.errors import ConfigError, RunError
from stellaris_jax.base.outputs import replacing, write_atomically
from stellaris_jax.base.sqlite import check_database
from stellaris_jax.config.schema import LAST_SEED, shown
from stellaris_jax.config.stored import from_yaml, read_yaml
from stellaris_jax.config.tree import Config
from stellaris_jax.config.trust import Trust, admit
from stellaris_jax.execute.executors import check_installed
from stellaris_jax.execute.loading import checked
from stellaris_jax.many.choose.objective import AXES, Goal
from stellaris_jax.many.proposals import Sampler
from stellaris_jax.many.space import Space
from stellaris_jax.report.points import points
from stellaris_jax.runs.run_dir import store, writing

ABOUT, STORAGE = "tune.yaml", "study.db"
MOST_TRIALS = 1_000_000
"""Largest number of trials of a search."""
MOST_SEEDS = 1000
"""Largest number of fresh seeds."""


class StoreError(RunError):
    """Error: a search's files cannot be read or written; the search can be resumed once the cause is gone."""


@dataclass(frozen=True)
class Search:
    """Options of a search. Raises ConfigError for values out of range.

    Attributes:
      trials: number of settings to try.
      reduction: one of `reduction` trials continues at every rung; 0 lets all run to their end.
      seed: random seed of the sampler.
      measure: `return`, or `seconds` or `dollars` to the target.
      target: return to reach; `None` for the highest return.
      fresh_seeds: other seeds, on which the best trial and the untuned settings are compared; 0 for none.
    """

    trials: int = 32
    reduction: int = 3
    seed: int = 0
    measure: str = "return"
    target: float | None = None
    fresh_seeds: int = 0

    def __post_init__(self) -> None:
        counts = ("trials", 1, MOST_TRIALS), ("reduction", 0, MOST_TRIALS), ("fresh_seeds", 0, MOST_SEEDS)
        for key, low, high in (*counts, ("seed", 0, LAST_SEED)):
            value = getattr(self, key)
            if type(value) is not int or not low <= value <= high:
                raise ConfigError(f"{key} must be an integer from {low} to {high}, not {shown(value)}.")
        if self.reduction == 1:
            raise ConfigError("reduction=1 stops no trial; accepted: 0, which stops none either, or at least 2.")
        if self.measure not in AXES:
            raise ConfigError(f"measure must be one of {', '.join(AXES)}, not {shown(self.measure)}.")
        if (self.target is None) != (self.measure == "return") or not _is_finite(self.target):
            raise ConfigError(
                f"target={shown(self.target)} does not go with measure={self.measure}: seconds and dollars need a "
                "return to reach, and return has none."
            )

    @property
    def goal(self) -> Goal:
        """Goal of the search."""
        return Goal(self.measure, self.target)


def _is_finite(target: Any) -> bool:
    return target is None or (type(target) in (int, float) and math.isfinite(target))


def begin(directory: Path, config: Config, space: Path, search: Search, overrides: Sequence[str] = ()) -> None:
    """Write the files of a new search.

    Args:
      directory: new or empty directory.
      config: configuration to tune; the first trial has its values.
      space: file of the space.
      search: options of the search.
      overrides: command-line overrides that made `config`; stored for display.

    Raises:
      ConfigError: the directory is not empty, or the space does not fit the configuration.
      RunError: the directory cannot be written.
    """
    check_installed(config)
    Space.read(space, config)
    if directory.is_dir() and any(directory.iterdir()):
        raise ConfigError(f"{directory} is not empty; name another directory, or resume a search with --resume.")
    with writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
        store(config, directory)
        write_atomically(directory / "space.yaml", inputs.read_text(space, inputs.CONFIGURATION))
        about = {**asdict(search), "overrides": list(overrides)}
        write_atomically(directory / ABOUT, yaml.safe_dump(about, sort_keys=False, allow_unicode=True))


def stored_options(directory: Path, trials: int | None = None) -> tuple[Search, list[str] | None]:
    """Options of a search and its original overrides, which are text for display and are never composed.

    Args:
      directory: directory of the search.
      trials: replaces the number of trials in `tune.yaml`.

    Returns:
      Options and overrides; the latter are None if an earlier version began the search.

    Raises:
      ConfigError: there is no search, or `tune.yaml` is not valid.
    """
    path = directory / ABOUT
    if not path.is_file():
        raise ConfigError(f"{directory} holds no search: there is no {path}.")
    about: dict[str, Any] = {str(key): value for key, value in read_yaml(path).items()}
    overrides = about.pop("overrides", None)
    if overrides is not None:
        texts = overrides if isinstance(overrides, list) else [overrides, None]
        if not all(isinstance(text, str) and text.isprintable() for text in texts):
            raise ConfigError(f"{path}: overrides must be a list of texts on one line each, not {shown(overrides)}.")
    try:
        search = Search(**about)
    except TypeError:
        raise ConfigError(f"{path} has other keys than the options of a search.") from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return (search if trials is None else replace(search, trials=trials)), overrides


def open_search(
    directory: Path, trials: int | None = None, trust: Trust = False
) -> tuple[Config, Space, Search, optuna.Study]:
    """Open a search.

    Args:
      directory: directory of the search.
      trials: replaces the number of trials in `tune.yaml`.
      trust: plug-ins, modules and services that the search may import or connect to (see `config.trust`).

    Returns:
      Configuration, space, options and study.

    Raises:
      ConfigError: there is no search, or its files do not belong together.
      StoreError: `study.db` cannot be read.
    """
    search, _ = stored_options(directory, trials)
    path = directory / "config.yaml"
    config = checked(admit(from_yaml(path), path, trust, training=True))
    return config, Space.read(directory / "space.yaml", config), search, study_of(directory, search)


def study_of(directory: Path, search: Search) -> optuna.Study:
    """Study of a search; a new one before the first trial. Raises ConfigError and StoreError as `open_search` does."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    path = directory / STORAGE
    runs = [int(place.name) for place in points(directory) if place.is_dir()]
    try:
        check_database(path)
        empty = not path.exists() or not path.stat().st_size
    except OSError as error:
        raise ConfigError(f"{path} cannot be used: {inputs.reason(error)}.") from None
    if runs and empty:
        raise ConfigError(_lost(path, runs[0]))
    with storing(directory, Exception):  # a damaged file makes Optuna raise all kinds of errors
        study = optuna.create_study(
            storage=_storage(path),
            sampler=Sampler(search.seed),
            pruner=optuna.pruners.NopPruner(),  # trials are compared by `proposals.Halving`
            study_name="tune",
            direction="maximize",
            load_if_exists=True,
        )
        numbers = [trial.number for trial in study.trials]
        known = len(numbers)
        if numbers != list(range(known)):
            raise ValueError("its trials are not numbered from 0 on")
    if runs and runs[-1] >= known:
        raise ConfigError(_lost(path, next(number for number in runs if number >= known)))
    return study


def rebuild(directory: Path, study: optuna.Study, trials: Sequence[optuna.trial.FrozenTrial]) -> None:
    """Replace `study.db`, in one step, by a study of these trials; closes `study`. Raises StoreError."""
    with storing(directory, OSError):
        with replacing(directory / STORAGE) as path:
            storage = _storage(path)
            try:
                optuna.create_study(storage=storage, study_name="tune", direction="maximize").add_trials(trials)
            finally:
                _close(storage)
        _close(study._storage)


@contextmanager
def storing(directory: Path, *others: type[Exception]) -> Iterator[None]:
    """Context that turns failures of Optuna's storage, and errors of types `others`, into a StoreError with advice."""
    try:
        yield
    except (RunError, ConfigError):
        raise
    except Exception as error:
        if not isinstance(error, (optuna.exceptions.OptunaError, SQLAlchemyError, *others)):
            raise
        why = _reason(error)
        raise StoreError(
            f"{directory / STORAGE} cannot be read or written: {why}. Make room for it, or put back a copy of it that "
            f"is whole, then continue with: {resume_command(directory)}"
        ) from error


def resume_command(directory: Path) -> str:
    """Command that resumes a search."""
    return f"{command('tune')} --resume {path_argument(directory)}"


def _storage(path: Path) -> optuna.storages.RDBStorage:
    return optuna.storages.RDBStorage(f"sqlite:///{path.absolute()}")


def _close(storage: Any) -> None:
    """Close the connections of a storage, which Optuna may have wrapped in a cache."""
    backend = getattr(storage, "_backend", storage)
    backend.remove_session()
    backend.engine.dispose()


def _lost(path: Path, number: int) -> str:
    return (
        f"{path} does not know trial {number}, whose run is in {path.parent / str(number)}: the file was lost or "
        "replaced, and with it what the trials were. Put it back, or begin a new search in another directory (--dir)."
    )


def _reason(error: BaseException) -> str:
    """Database's message for an error, if there is one, else the error's own; at most 200 characters on one line."""
    current: BaseException | None = error
    while current is not None:
        if isinstance(original := getattr(current, "orig", None), Exception):
            return inputs.reason(original)[:200]
        current = current.__cause__ or current.__context__
    return inputs.reason(error if isinstance(error, Exception) else Exception(str(error)))[:200]
