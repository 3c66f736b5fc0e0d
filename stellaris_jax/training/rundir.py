"""The directory of a run: reserved before anything slow is done, and written by one process at a time."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from stellaris_jax.config.commands import argument, is_interactive
from stellaris_jax.config.inputs import reason
from stellaris_jax.config.outputs import open_own, write_atomically
from stellaris_jax.config.schema import ConfigError, RunError
from stellaris_jax.config.stored import to_yaml
from stellaris_jax.config.tree import Config
from stellaris_jax.config.trust import remember
from stellaris_jax.report.telemetry.commands import resume_command

LOCK = ".lock"
"""Locked by the process that writes to the run, whose number it holds. It stays: removing it would be a race."""

UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)
"""Of file systems without locks, such as some of clusters: there nothing is locked."""

LONGEST_NAME = 250
"""Bytes of a file's name that every file system takes, with a number behind it."""


@contextmanager
def run_directory(config: Config) -> Iterator[Path]:
    """The directory of the run, which this process alone writes to for as long as the context lasts.

    With `config.resume` it is that one, with `config.run.dir` one that is empty or made, else one that is made below
    runs/. What was made is removed again where the context is left by an exception before anything is in it.

    Raises ConfigError, saying what would do, for a directory that cannot be had.
    """
    place = Path(config.resume or config.run.dir)
    if not str(place).isprintable() or "\\" in str(place.absolute()):
        # TensorStore, which writes checkpoints, takes backslashes for slashes.
        raise ConfigError(f"{str(place.absolute())!r} has a backslash, or letters that cannot be printed, in its path.")
    if config.resume:
        with _locked(place):
            yield place
        return
    path, made = _named(config) if config.run.dir else (_numbered(config), True)
    _refuse_contents(path)
    with _locked(path):
        _refuse_contents(path)  # of a process that was quicker
        try:
            yield path
        except BaseException:
            with suppress(OSError, ConfigError):
                if not _contents(path):
                    (path / LOCK).unlink()
                    if made:
                        path.rmdir()
            raise


@contextmanager
def writing(run_dir: Path) -> Iterator[None]:
    """Within, a full disk, a lost permission and the like are told of in one sentence, as a RunError."""
    try:
        yield
    except OSError as error:
        raise RunError(f"{_short(run_dir)} could not be written: {reason(error)}.") from error


def store(config: Config, run_dir: Path) -> None:
    """Write `config.yaml`. Where a run lies is no part of what it is: directories are moved and renamed."""
    text = to_yaml(config.replace({"resume": "", "run.dir": ""}))
    # First, so that a run that is killed in between is one that this user may open. Without a home, opening it asks.
    remember(text, config)
    write_atomically(run_dir / "config.yaml", text)


def reserve(path: Path) -> Path:
    """Make a directory that nobody else has made: `path`, or with a number behind it. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    stem, number = path, 1
    while True:
        try:
            path.mkdir()
        except FileExistsError:
            number += 1
            path = stem.with_name(f"{stem.name}-{number}")
        else:
            return path


def reserved(path: Path, advice: str) -> Path:
    """What `reserve` makes. Raises ConfigError, with the advice, where it cannot."""
    try:
        return reserve(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be made: {reason(error)}; {advice}.") from None


def stamped(folder: Path, label: str) -> Path:
    """A path for something new, named by the time and a label."""
    return folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{_slug(label)}"


def _slug(label: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", label).strip("-").lower()


def _named(config: Config) -> tuple[Path, bool]:
    """The directory the configuration names, and whether it had to be made."""
    path = Path(config.run.dir)
    try:
        if path.is_dir():
            return path, False
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(exist_ok=True)
    except OSError as error:
        raise ConfigError(f"run.dir={_short(path)} cannot be made: {reason(error)}.") from None
    except RecursionError:  # of thousands of directories, one inside the other
        raise ConfigError(f"run.dir={_short(path)} cannot be made: it is too deep.") from None
    return path, True


def _numbered(config: Config) -> Path:
    """A directory of our own below runs/, named by the time and by what runs."""
    path = stamped(Path("runs"), config.run.name or f"{config.system.name}-{config.env.name}")
    if len(path.name) > LONGEST_NAME:
        raise ConfigError(f"run.name has {len(config.run.name)} letters, and names of files some {LONGEST_NAME} bytes.")
    return reserved(path, "run.dir=PATH names another place")


def _refuse_contents(path: Path) -> None:
    if not _contents(path):
        return
    if is_interactive():  # most often a cell that is run again
        raise ConfigError(
            f"run.dir={path} is not empty: name another directory to train anew, or continue the run with "
            f"{resume_command(path)}."
        )
    raise ConfigError(
        f"run.dir={path} is not empty; name another directory, or continue the run with {argument('resume', path)}."
    )


def _contents(path: Path) -> list[str]:
    """What lies in a directory, but for its lock."""
    try:
        return [name for name in os.listdir(path) if name != LOCK]
    except OSError as error:
        raise ConfigError(f"run.dir={_short(path)} cannot be read: {reason(error)}.") from None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of a run directory, which the system releases however the process ends."""
    try:
        lock = open_own(path / LOCK)
    except OSError as error:
        raise ConfigError(f"{_short(path)} cannot be written: {reason(error)}.") from None
    with lock:
        _lock(lock.fileno(), path)
        yield


def _lock(lock: int, path: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(lock, 200).decode(errors="replace").strip()
        raise ConfigError(f"{path} is being written by {holder or 'another process'}; let it end first.") from None
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise ConfigError(f"{_short(path)} cannot be locked: {reason(error)}.") from None
    with suppress(OSError):  # a full disk is found out by what matters
        os.ftruncate(lock, 0)
        os.write(lock, f"process {os.getpid()} on {os.uname().nodename}\n".encode())


def _short(path: Path) -> str:
    """A path for a sentence: one of thousands of letters is cut in the middle."""
    text = str(path)
    return text if len(text) <= 300 else f"{text[:150]}…{text[-50:]}"
