"""Directory of a run: reserved before any slow work, and written by one process at a time."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from stellaris_jax.base.commands import argument, is_interactive, resume_command
from stellaris_jax.base.errors import ConfigError, RunError
from stellaris_jax.base.inputs import reason
from stellaris_jax.base.outputs import open_for_update, write_atomically
from stellaris_jax.config.stored import to_yaml
from stellaris_jax.config.tree import Config
from stellaris_jax.config.trust import remember

LOCK = ".lock"
"""Lock file, held by the process that writes to the run; contains its number. Never removed, because that would be a
race."""

UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)
"""Errors of file systems without locks, such as some cluster file systems; there nothing is locked."""

LONGEST_NAME = 250
"""Longest file name, in bytes, that every file system accepts with a number appended."""


@contextmanager
def run_directory(config: Config) -> Iterator[Path]:
    """Directory of the run, reserved for this process until the context ends.

    `config.resume` names an existing run. Otherwise `config.run.dir` names a new or empty directory; without it, a new
    one is made below runs/. A new directory is removed again if an exception ends the context while it is empty.

    Raises ConfigError, with advice, if the directory is not available.
    """
    place = Path(config.resume or config.run.dir)
    if not str(place).isprintable() or "\\" in str(place.absolute()):
        # TensorStore, which writes checkpoints, takes backslashes for slashes.
        raise ConfigError(f"{str(place.absolute())!r} has a backslash, or letters that cannot be printed, in its path.")
    if config.resume:
        with locked(place):
            yield place
        return
    path, made = _named(config) if config.run.dir else (_numbered(config), True)
    _refuse_contents(path)
    with locked(path):
        _refuse_contents(path)  # another process may have been quicker
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
    """Context that turns errors of writing, such as a full disk, into a RunError of one sentence."""
    try:
        yield
    except OSError as error:
        raise RunError(f"{_short(run_dir)} could not be written: {reason(error)}.") from error


def store(config: Config, run_dir: Path) -> None:
    """Write `config.yaml`, without the run's location, because directories are moved and renamed."""
    text = to_yaml(config.replace({"resume": "", "run.dir": ""}))
    # First, so that this user may open a run that is killed in between. Without a home directory, opening it asks.
    remember(text, config)
    write_atomically(run_dir / "config.yaml", text)


def reserve(path: Path) -> Path:
    """Make a new directory at `path`, or at `path` with a number appended. Raises OSError."""
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
    """Same as `reserve`, but raises ConfigError with the advice if the directory cannot be made."""
    try:
        return reserve(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be made: {reason(error)}; {advice}.") from None


def stamped(folder: Path, label: str) -> Path:
    """Path for a new entry, named by the time and a label."""
    return folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{_slug(label)}"


def _slug(label: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", label).strip("-").lower()


def _named(config: Config) -> tuple[Path, bool]:
    """Directory that the configuration names, and whether it had to be made."""
    path = Path(config.run.dir)
    try:
        if path.is_dir():
            return path, False
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(exist_ok=True)
    except OSError as error:
        raise ConfigError(f"run.dir={_short(path)} cannot be made: {reason(error)}.") from None
    except RecursionError:  # thousands of nested directories
        raise ConfigError(f"run.dir={_short(path)} cannot be made: it is too deep.") from None
    return path, True


def _numbered(config: Config) -> Path:
    """Make a new directory below runs/, named by the time and the run."""
    path = stamped(Path("runs"), config.run.name or f"{config.system.name}-{config.env.name}")
    if len(path.name) > LONGEST_NAME:
        raise ConfigError(f"run.name has {len(config.run.name)} letters, and names of files some {LONGEST_NAME} bytes.")
    return reserved(path, "run.dir=PATH names another place")


def _refuse_contents(path: Path) -> None:
    if not _contents(path):
        return
    if is_interactive():  # usually a notebook cell that is run again
        raise ConfigError(
            f"run.dir={path} is not empty: name another directory to train anew, or continue the run with "
            f"{resume_command(path)}."
        )
    raise ConfigError(
        f"run.dir={path} is not empty; name another directory, or continue the run with {argument('resume', path)}."
    )


def _contents(path: Path) -> list[str]:
    """Names of entries in a directory, except its lock."""
    try:
        return [name for name in os.listdir(path) if name != LOCK]
    except OSError as error:
        raise ConfigError(f"run.dir={_short(path)} cannot be read: {reason(error)}.") from None


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a directory; the operating system releases it however the process ends."""
    try:
        lock = open_for_update(path / LOCK)
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
    with suppress(OSError):  # more important writes will report a full disk
        os.ftruncate(lock, 0)
        os.write(lock, f"process {os.getpid()} on {os.uname().nodename}\n".encode())


def _short(path: Path) -> str:
    """Text of a path for a sentence; the middle of a very long path is cut out."""
    text = str(path)
    return text if len(text) <= 300 else f"{text[:150]}…{text[-50:]}"
