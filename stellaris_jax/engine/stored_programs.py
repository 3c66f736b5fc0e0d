"""Compiled programs kept on disk whole, so that a command traces and lowers nothing that it has compiled before.

JAX keeps compiled programs, but finds one only after it has traced and lowered the function anew. Here a program is
found by what it is made from (`engine.program_identity`) and the shapes of its inputs. Where that does not tell
everything, no program is kept: with plug-ins and other modules from outside the installed packages, and with files that
an environment opens.

Loading a program unpickles it and runs machine code. So programs are read from a folder that only this user can open.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import re
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import serialize_executable
from jax.experimental.compilation_cache import compilation_cache

from stellaris_jax.base.checked_files import read_checked, write_checked
from stellaris_jax.config.env_texts import JOB
from stellaris_jax.config.tree import Config
from stellaris_jax.config.trust import code_of
from stellaris_jax.engine.mesh import compile_for_backend
from stellaris_jax.engine.program_identity import Untold, code, foreign_modules, surroundings, text_of

FOLDER = "programs"
"""Folder of programs, within that of JAX's compilation cache."""
LARGEST = 1 << 30
"""Largest sum of the sizes of kept programs, in bytes; the least recently used ones are deleted."""
MOST_NUMBERS = 1 << 22
"""Most numbers of arrays that are kept."""
PRIVATE = 0o700
"""Permissions of the folder."""
ABANDONED = 3600.0
"""Seconds after which a file that a killed process was writing is deleted."""

SWITCHING = threading.RLock()
"""Lock of the switch of JAX's own cache, which is one for all threads."""
SWITCHED = threading.Event()
"""Whether it is switched off here, and not by the user."""

INSIDE = {"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape"}
"""Custom calls that XLA itself resolves."""

Compile = Callable[[jax.stages.Lowered], jax.stages.Compiled]


class StoredPrograms:
    """Programs of one environment, network and spec, kept on disk.

    Args:
      parts: values that decide the programs, beside shapes of their inputs; `None` keeps nothing.
    """

    def __init__(self, parts: Any = None):
        self._text = None
        self._found: dict[Path, jax.stages.Compiled] = {}
        with suppress(Untold):
            self._text = None if parts is None else "\n".join((text_of(parts), surroundings()))

    def __bool__(self) -> bool:
        return self._text is not None

    def compiled(
        self,
        name: str,
        arguments: Any,
        lower: Callable[[], jax.stages.Lowered],
        compiler: Compile = compile_for_backend,
        devices: Iterable[jax.Device] | None = None,
    ) -> jax.stages.Compiled:
        """Program from the disk, or else compiled and kept there.

        Args:
          name: name of the program among those with the same parts.
          arguments: arrays or shapes of its inputs, with shardings where it has any, and constants that it was made
            with.
          lower: lowers the program.
          compiler: compiles it.
          devices: devices that it runs on; by default the first one.
        """
        path = self._path(name, arguments)
        if path is None:
            return compiler(lower())
        if path not in self._found:
            program = _load(path, list(devices or jax.devices()[:1]))
            self._found[path] = program or self._compiled(path, lower(), compiler)
        return self._found[path]

    def _compiled(self, path: Path, lowered: jax.stages.Lowered, compiler: Compile) -> jax.stages.Compiled:
        """Compile a program, and keep it if that is possible."""
        if not os.access(path.parent, os.W_OK) or not _is_complete(lowered):
            return compiler(lowered)
        with _uncached():
            program = compiler(lowered)
        _keep(path, program)
        return program

    def rows(self, name: str, keys: Sequence[int], make: Callable[[], jax.Array]) -> Any:
        """Numbers `[len(keys), P]`, float32, from the disk, or else made and kept there; see `compiled`.

        Args:
          name: name of the function that makes them.
          keys: its inputs.
          make: makes them.
        """
        path = self._path(name, tuple(keys))
        data = None if path is None else read_checked(path, 4 * MOST_NUMBERS, own=True)
        if data:
            return jnp.asarray(np.frombuffer(data, "<f4").reshape(len(keys), -1))
        made = make()
        if path is not None and made.size <= MOST_NUMBERS:
            _write(path, np.asarray(made).astype("<f4").tobytes())
        return made

    def _path(self, name: str, arguments: Any) -> Path | None:
        folder = _folder() if self else None
        if folder is None:
            return None
        leaves, tree = jax.tree.flatten(arguments)
        shapes = [
            (getattr(x, "shape", None), str(getattr(x, "dtype", x)), str(getattr(x, "sharding", ""))) for x in leaves
        ]
        digest = hashlib.sha256(f"{name}\n{tree}\n{shapes}\n{self._text}".encode()).hexdigest()
        return folder / f"{name}-{digest[:48]}"


NONE = StoredPrograms()
"""Programs that are not kept."""


def parts_of(config: Config, *parts: Any) -> Any:
    """Parts for `StoredPrograms`; `None` if a program may depend on more than they tell, or nothing is to be kept."""
    # The job that `env=job/...` schedules is composed from files, and may read a log.
    unknown = (
        config.plugins or code_of(config) or JOB in config.env.kwargs or config.env.name.lower().startswith(f"{JOB}/")
    )
    if config.engine.distributed or not config.engine.compile_cache or unknown or any(foreign_modules()):
        return None
    if _folder() is None:  # then the digest of all sources is for nothing
        return None
    return (config.env, config.network, *parts)


# Files ----------------------------------------------------------------------------------------------------------------


def _folder() -> Path | None:
    """Folder of programs, made if need be; `None` if there is no such folder that only this user can open."""
    cache_dir = jax.config.values["jax_compilation_cache_dir"]
    if not (jax.config.values["jax_enable_compilation_cache"] or SWITCHED.is_set()):
        return None
    if not cache_dir or "://" in cache_dir or not hasattr(os, "geteuid"):  # Windows has other permissions
        return None
    folder = Path(cache_dir) / FOLDER
    try:
        if not folder.is_dir():
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir(PRIVATE, exist_ok=True)
        about = os.lstat(folder)
    except OSError:
        return None
    private = stat.S_ISDIR(about.st_mode) and not about.st_mode & 0o077 and about.st_uid == os.geteuid()
    return folder if private else None


def _is_complete(lowered: jax.stages.Lowered) -> bool:
    """Whether a program calls nothing outside itself, such as LAPACK, which JAX prepares when it lowers the call."""
    calls = set(re.findall(r"custom_call @(\w+)", lowered.as_text()))
    return calls <= INSIDE


@contextmanager
def _uncached() -> Iterator[None]:
    """Context without JAX's own cache: what was loaded from there is serialised without some of its functions."""
    with SWITCHING:
        before = jax.config.values["jax_enable_compilation_cache"]
        try:
            SWITCHED.set()
            jax.config.update("jax_enable_compilation_cache", False)
            compilation_cache.reset_cache()
            yield
        finally:
            jax.config.update("jax_enable_compilation_cache", before)
            SWITCHED.clear()
            compilation_cache.reset_cache()


def _load(path: Path, devices: list[jax.Device]) -> jax.stages.Compiled | None:
    """Program of a file; `None` if there is none, or it cannot be loaded, in which case it is deleted."""
    data = read_checked(path, LARGEST, own=True)
    if data is None:
        return None
    try:
        payload, in_tree, out_tree = pickle.loads(data)
        program: jax.stages.Compiled = serialize_executable.deserialize_and_load(
            payload, in_tree, out_tree, execution_devices=devices
        )
    except Exception:  # whatever pickle, JAX and XLA raise: the program is compiled again
        with suppress(OSError):
            path.unlink()
        return None
    with suppress(OSError):
        os.utime(path)
    return program


def _keep(path: Path, program: jax.stages.Compiled) -> None:
    """Write a program into its file, unless it cannot be serialised; then it is compiled again next time."""
    with suppress(Exception):  # whatever JAX and XLA raise
        _write(path, pickle.dumps(serialize_executable.serialize(program)))


def _write(path: Path, data: bytes) -> None:
    """Write a file, unless code has changed meanwhile, so that parts imported late may be newer than the key."""
    if (found := code()) is not None and found.is_current():
        write_checked(path, data)
        _bound(path.parent)


def _bound(folder: Path) -> None:
    """Delete abandoned files, and the least recently used programs above `LARGEST`.

    Other processes may write and delete meanwhile.
    """
    entries = []
    with suppress(OSError):
        for entry in os.scandir(folder):
            with suppress(OSError):
                about = entry.stat(follow_symlinks=False)
                entries.append((about.st_mtime_ns, about.st_size, entry.path))
    total = 0
    for changed, size, path in sorted(entries, reverse=True):
        total += size
        abandoned = os.path.basename(path).startswith(".") and changed < (time.time() - ABANDONED) * 1e9
        if total > LARGEST or abandoned:
            with suppress(OSError):
                os.unlink(path)
