"""Store of runs on disk: which runs exist, their states, and what can be deleted."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.inputs import reason
from stellaris_jax.config.schema import flatten, plain
from stellaris_jax.config.stored import LAST
from stellaris_jax.config.tree import Config
from stellaris_jax.report.runs import Run, read_run
from stellaris_jax.runs.run_dir import LOCK

DONE, FAILED, STOPPED, EMPTY, TRAINING = "done", "failed", "stopped", "empty", "training"
"""States of a run: finished with a result; ended without one; not finished; nothing trained yet; being written now."""
INCOMPLETE, BROKEN = "incomplete", "broken"
"""States of a damaged run: resuming it mends damaged or missing files; or its configuration is damaged."""
DEEPEST = 4
"""Depth to which directories are searched for runs."""
CHECKPOINTS = "checkpoints"
"""Name of the folder with a run's checkpoints."""
OURS = (
    LOCK, "config.yaml", "metrics.jsonl*", "summary.json", "curve.png", CHECKPOINTS, "events.out.tfevents.*",
    "rounds.csv", "evaluations.csv", "report.html", "trace.jsonl.gz", "replay.json", "damaged-*", "wandb", "mlflow",
    "mlflow.db", ".wandb.json", ".mlflow.json", ".trackio.json", ".*.tmp*", "actions.bin*", "*.mp4", "*.gif",
)  # fmt: skip
"""Names of files that a run writes to its directory. A directory with anything else in it is not deleted."""
SAVED = re.compile(r"\d+|\d+\.orbax-checkpoint-tmp.*|damaged-.*")
"""Names of entries that a run writes to its checkpoint folder."""
SECTIONS = ("env", "algorithm", "system", "run")
"""Sections that identify a configuration of this package."""


@dataclass(frozen=True)
class StoredRun:
    """Run on disk and its state.

    Attributes:
      run: contents of the run.
      state: one of `DONE`, `FAILED`, `STOPPED`, `EMPTY`, `TRAINING`, `INCOMPLETE`, `BROKEN`.
    """

    run: Run
    state: str

    @property
    def path(self) -> Path:
        return self.run.path


def find(places: Sequence[Path]) -> list[StoredRun]:
    """Find the runs at or below these directories, in order. Raises ConfigError if a path is not a directory."""
    for place in places:
        if not place.is_dir():
            raise ConfigError(f"{place} is not a directory; name one that holds runs, or runs themselves.")
    run_paths = {path.resolve(): path for place in places for path in _below(place, DEEPEST)}
    runs = (read_run(path, _quiet, last=1) for path in run_paths.values())
    return [StoredRun(run, state_of(run)) for run in runs if not is_broken(run) or _has_been_trained(run.path)]


def _quiet(message: str) -> None:
    """Ignore a message about damage: the run's state and its `damage` report it."""


def _below(place: Path, levels: int) -> Iterator[Path]:
    if os.path.lexists(place / "config.yaml") or os.path.isfile(place / "metrics.jsonl"):
        yield place
    elif levels:
        with suppress(OSError):
            for path in sorted(place.iterdir(), key=lambda path: (len(path.name), path.name)):
                if os.path.isdir(path) and not path.is_symlink():
                    yield from _below(path, levels - 1)


def is_broken(run: Run) -> bool:
    """Whether a configuration is unreadable, lacks a section or the last key, or has values of the wrong type."""
    if LAST not in run.config or not all(any(key.startswith(f"{name}.") for key in run.config) for name in SECTIONS):
        return True
    return any(key in run.config and not _alike(run.config[key], value) for key, value in _defaults().items())


@cache
def _defaults() -> dict[str, Any]:
    return flatten(plain(Config()))


def _alike(value: Any, default: Any) -> bool:
    """Whether a value has its default's type; all numbers count as one type, and a null default accepts any."""
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(value, bool) == isinstance(default, bool)
    if isinstance(default, int | float):
        return isinstance(value, int | float)
    return default is None or isinstance(value, type(default))


def _has_been_trained(path: Path) -> bool:
    """Whether a directory holds traces of training besides a configuration, or is a point of a sweep."""
    has_output = any(os.path.lexists(path / name) for name in (LOCK, CHECKPOINTS, "metrics.jsonl", "summary.json"))
    return has_output or (path.name.isdecimal() and os.path.isfile(path.parent / "sweep.yaml"))


def state_of(run: Run, ours: bool = False) -> str:
    """State of a run.

    A run with a damaged summary is incomplete: its checkpoints may be intact, and resuming writes a new summary.

    Args:
      run: the run.
      ours: True if this process holds the run's lock.
    """
    if not ours and is_held(run.path):
        return TRAINING
    if is_broken(run):
        return BROKEN
    if run.failure is not None:
        return FAILED
    if run.damage:
        return INCOMPLETE
    if run.summary is not None:
        return DONE
    return STOPPED if run.rounds or run.evaluations or _checkpoints(run.path) else EMPTY


def is_held(path: Path) -> bool:
    """Whether a process writes to a run."""
    with held(path) as acquired:
        return not acquired


@contextmanager
def held(path: Path) -> Iterator[bool]:
    """Hold the lock of a run within the context, if it is free; yields whether it was.

    If the file system has no locks, or the lock is a link, it counts as held.
    """
    try:
        lock = _opened_lock(path / LOCK)
    except FileNotFoundError:  # no process writes here, because writers make the lock first
        yield True
        return
    except OSError:
        yield False
        return
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free = True
        except OSError:
            free = False
        yield free
    finally:
        os.close(lock)


def _opened_lock(path: Path) -> int:
    """Open a lock's file descriptor; read-only if the disk is mounted so or permission is missing."""
    flags = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        return os.open(path, os.O_RDWR | flags)
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES):
            raise
        return os.open(path, os.O_RDONLY | flags)


def _checkpoints(path: Path) -> list[Path]:
    """Checkpoints of a run, oldest first."""
    folder = path / CHECKPOINTS
    try:
        paths = [path for path in folder.iterdir() if path.name.isdecimal()]
    except OSError:
        paths = []
    return sorted(paths, key=lambda path: int(path.name))


@dataclass(frozen=True)
class Removable:
    """Paths of a run that can be deleted: the whole run, or some of its checkpoints.

    Attributes:
      kept: the run.
      paths: paths to delete.
    """

    kept: StoredRun
    paths: tuple[Path, ...]

    @property
    def size(self) -> int:
        """Total size in bytes."""
        return sum(_size(path) for path in self.paths)


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() and not path.is_symlink() else [path]
    return sum(file.lstat().st_size for file in files if not file.is_dir())


def removable_runs(runs: Sequence[StoredRun]) -> tuple[list[Removable], list[str]]:
    """Failed and empty runs, and a sentence for each of these, or broken ones, that has to stay."""
    removable, reasons = [], []
    for stored in runs:
        if stored.state == BROKEN:
            reasons.append(f"{stored.path} is left alone: its configuration cannot be read.")
        if stored.state not in (FAILED, EMPTY):
            continue
        if (stored.path.parent / "sweep.yaml").is_file():
            reasons.append(f"{stored.path} is left alone: a sweep goes on only with all of its points.")
        elif other := _foreign(stored.path):
            reasons.append(_foreign_reason(stored, other))
        else:
            removable.append(Removable(stored, (stored.path,)))
    return removable, reasons


def _foreign(path: Path) -> str:
    """Name of an entry in a run's directory that the run did not write; "" without one."""
    names = sorted(os.listdir(path))
    foreign = [name for name in names if not any(fnmatchcase(name, pattern) for pattern in OURS)]
    folder = path / CHECKPOINTS
    if folder.is_dir() and not folder.is_symlink():
        foreign += [f"{CHECKPOINTS}/{name}" for name in sorted(os.listdir(folder)) if not SAVED.fullmatch(name)]
    return foreign[0] if foreign else ""


def _foreign_reason(stored: StoredRun, foreign: str) -> str:
    return f"{stored.path} is left alone: {foreign} is nothing that a run leaves."


def old_checkpoints(runs: Sequence[StoredRun]) -> list[Removable]:
    """All checkpoints except the last one of finished and failed runs."""
    finished = [(stored, _checkpoints(stored.path)[:-1]) for stored in runs if stored.state in (DONE, FAILED)]
    deletable = [(stored, [path for path in paths if not _is_elsewhere(path)]) for stored, paths in finished]
    return [Removable(stored, tuple(paths)) for stored, paths in deletable if paths]


def _is_elsewhere(checkpoint: Path) -> bool:
    """Whether a checkpoint, or the folder of all, is a link to another place."""
    return checkpoint.is_symlink() or checkpoint.parent.is_symlink()


def delete(waste: Removable) -> str | None:
    """Delete a run or its checkpoints; returns a sentence if the run is being trained or cannot be deleted."""
    path = waste.kept.path
    with held(path) as acquired:
        if not acquired or state_of(read_run(path, _quiet, last=1), ours=True) != waste.kept.state:
            return f"{path} is left alone: it is being trained."
        if path in waste.paths and (foreign := _foreign(path)):
            return _foreign_reason(waste.kept, foreign)
        try:
            for entry in waste.paths:
                shutil.rmtree(entry)
        except OSError as error:
            if error.errno != errno.ENOENT:
                return f"{path} could not be deleted: {reason(error)}."
    return None
