"""Runs on disk: which there are, how they stand, and what of them may be cleared away."""

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

from stellaris_jax.config.inputs import reason
from stellaris_jax.config.schema import ConfigError, flatten, plain
from stellaris_jax.config.stored import LAST
from stellaris_jax.config.tree import Config
from stellaris_jax.report.runs import Run, read_run
from stellaris_jax.training.rundir import LOCK

DONE, FAILED, STOPPED, EMPTY, TRAINING = "done", "failed", "stopped", "empty", "training"
"""How a run stands: with a result; over without one; not over; nothing trained yet; being written now."""
INCOMPLETE, BROKEN = "incomplete", "broken"
"""How a damaged run stands: files are damaged or missing, which resuming it mends; its configuration is."""
DEEPEST = 4
"""Levels of directories below the one that is named in which runs are looked for."""
CHECKPOINTS = "checkpoints"
"""The folder of a run's checkpoints."""
OURS = (
    LOCK, "config.yaml", "metrics.jsonl*", "summary.json", "curve.png", CHECKPOINTS, "events.out.tfevents.*",
    "rounds.csv", "evaluations.csv", "report.html", "trace.jsonl.gz", "replay.json", "damaged-*", "wandb", "mlflow",
    "mlflow.db", ".wandb.json", ".mlflow.json", ".trackio.json", ".*.tmp*", "actions.bin*", "*.mp4", "*.gif",
)  # fmt: skip
"""Names of what a run leaves in its directory. One with anything else in it is not deleted."""
SAVED = re.compile(r"\d+|\d+\.orbax-checkpoint-tmp.*|damaged-.*")
"""Names of what a run leaves among its checkpoints."""
SECTIONS = ("env", "algorithm", "system", "run")
"""Sections by which a configuration is known for one of ours."""


@dataclass(frozen=True)
class StoredRun:
    """A run, and how it stands."""

    run: Run
    state: str

    @property
    def path(self) -> Path:
        return self.run.path


def find(places: Sequence[Path]) -> list[StoredRun]:
    """The runs in directories, or that directories are, by their paths. Raises ConfigError for what is no directory."""
    for place in places:
        if not place.is_dir():
            raise ConfigError(f"{place} is not a directory; name one that holds runs, or runs themselves.")
    found = {path.resolve(): path for place in places for path in _below(place, DEEPEST)}
    runs = (read_run(path, _quiet, last=1) for path in found.values())
    return [StoredRun(run, state_of(run)) for run in runs if not is_broken(run) or _has_been_trained(run.path)]


def _quiet(message: str) -> None:
    """Damage is told by the state of a run, and by its `damage`."""


def _below(place: Path, levels: int) -> Iterator[Path]:
    if os.path.lexists(place / "config.yaml") or os.path.isfile(place / "metrics.jsonl"):
        yield place
    elif levels:
        with suppress(OSError):
            for path in sorted(place.iterdir(), key=lambda path: (len(path.name), path.name)):
                if os.path.isdir(path) and not path.is_symlink():
                    yield from _below(path, levels - 1)


def is_broken(run: Run) -> bool:
    """Whether a configuration cannot be read, lacks sections of ours or its last key, or has values of other kinds."""
    if LAST not in run.config or not all(any(key.startswith(f"{one}.") for key in run.config) for one in SECTIONS):
        return True
    return any(key in run.config and not _alike(run.config[key], value) for key, value in _defaults().items())


@cache
def _defaults() -> dict[str, Any]:
    return flatten(plain(Config()))


def _alike(value: Any, default: Any) -> bool:
    """Whether a value is of its default's kind; numbers are of one kind, and null is a default that tells none."""
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(value, bool) == isinstance(default, bool)
    if isinstance(default, int | float):
        return isinstance(value, int | float)
    return default is None or isinstance(value, type(default))


def _has_been_trained(path: Path) -> bool:
    """Whether training has left anything in a directory beside a configuration, or it is a sweep's point."""
    left = any(os.path.lexists(path / name) for name in (LOCK, CHECKPOINTS, "metrics.jsonl", "summary.json"))
    return left or (path.name.isdecimal() and os.path.isfile(path.parent / "sweep.yaml"))


def state_of(run: Run, ours: bool = False) -> str:
    """How a run stands; `ours`: its lock is held by this process.

    One whose summary is damaged is incomplete: its checkpoints may be sound, and resuming it writes another.
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
    with held(path) as ours:
        return not ours


@contextmanager
def held(path: Path) -> Iterator[bool]:
    """Hold the lock of a run within the context, if it is free; whether it was. Without locks it is taken for held, and
    so is one that is a link."""
    try:
        lock = _opened_lock(path / LOCK)
    except FileNotFoundError:  # of no process that writes: they make it first
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
    """A descriptor of a lock; to read where it cannot be written, as on a disk that is mounted so."""
    always = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        return os.open(path, os.O_RDWR | always)
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES):
            raise
        return os.open(path, os.O_RDONLY | always)


def _checkpoints(path: Path) -> list[Path]:
    """A run's checkpoints, oldest first."""
    folder = path / CHECKPOINTS
    try:
        found = [one for one in folder.iterdir() if one.name.isdecimal()]
    except OSError:
        found = []
    return sorted(found, key=lambda one: int(one.name))


@dataclass(frozen=True)
class Removable:
    """What may be deleted of a run: itself, or some of its checkpoints."""

    kept: StoredRun
    paths: tuple[Path, ...]

    @property
    def size(self) -> int:
        """Bytes that it takes."""
        return sum(_size(path) for path in self.paths)


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() and not path.is_symlink() else [path]
    return sum(file.lstat().st_size for file in files if not file.is_dir())


def removable_runs(runs: Sequence[StoredRun]) -> tuple[list[Removable], list[str]]:
    """Runs that have failed or are empty; and, in sentences, which of these, and of broken ones, are left alone."""
    found, left = [], []
    for kept in runs:
        if kept.state == BROKEN:
            left.append(f"{kept.path} is left alone: its configuration cannot be read.")
        if kept.state not in (FAILED, EMPTY):
            continue
        if (kept.path.parent / "sweep.yaml").is_file():
            left.append(f"{kept.path} is left alone: a sweep goes on only with all of its points.")
        elif other := _foreign(kept.path):
            left.append(_left(kept, other))
        else:
            found.append(Removable(kept, (kept.path,)))
    return found, left


def _foreign(path: Path) -> str:
    """Something in a run's directory that is not the run's; "" where there is nothing."""
    names = sorted(os.listdir(path))
    foreign = [name for name in names if not any(fnmatchcase(name, ours) for ours in OURS)]
    folder = path / CHECKPOINTS
    if folder.is_dir() and not folder.is_symlink():
        foreign += [f"{CHECKPOINTS}/{name}" for name in sorted(os.listdir(folder)) if not SAVED.fullmatch(name)]
    return foreign[0] if foreign else ""


def _left(kept: StoredRun, other: str) -> str:
    return f"{kept.path} is left alone: {other} is nothing that a run leaves."


def old_checkpoints(runs: Sequence[StoredRun]) -> list[Removable]:
    """All checkpoints but the last one of runs that are over."""
    over = [(kept, _checkpoints(kept.path)[:-1]) for kept in runs if kept.state in (DONE, FAILED)]
    ours = [(kept, [path for path in paths if not _is_elsewhere(path)]) for kept, paths in over]
    return [Removable(kept, tuple(paths)) for kept, paths in ours if paths]


def _is_elsewhere(checkpoint: Path) -> bool:
    """Whether a checkpoint, or the folder of them all, is only a link here."""
    return checkpoint.is_symlink() or checkpoint.parent.is_symlink()


def delete(waste: Removable) -> str | None:
    """Delete it, unless the run has been taken up again; a sentence where that is so, or where it cannot be."""
    path = waste.kept.path
    with held(path) as ours:
        if not ours or state_of(read_run(path, _quiet, last=1), ours=True) != waste.kept.state:
            return f"{path} is left alone: it is being trained."
        if path in waste.paths and (other := _foreign(path)):
            return _left(waste.kept, other)
        try:
            for one in waste.paths:
                shutil.rmtree(one)
        except OSError as error:
            if error.errno != errno.ENOENT:
                return f"{path} could not be deleted: {reason(error)}."
    return None
