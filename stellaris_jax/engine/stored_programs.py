"""Compiled programs kept on disk whole, so that a command traces and lowers nothing that it has compiled before.

JAX keeps compiled programs, but finds one only after it has traced and lowered the function anew. Here a program is
found by what it is made from. This is the parts of the configuration that shape it, shapes of its inputs, the sources
of this package, versions of all installed packages, JAX's configuration, and the machine. Where that does not tell
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
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import serialize_executable
from jax.experimental.compilation_cache import compilation_cache

import stellaris_jax
from stellaris_jax.base.checked_files import read_checked, write_checked
from stellaris_jax.base.inputs import read_bytes
from stellaris_jax.base.machine import cores, cpu_features
from stellaris_jax.config.env_texts import JOB
from stellaris_jax.config.optioned import Numbered, numbers_of, options_of
from stellaris_jax.config.tree import Config
from stellaris_jax.config.trust import code_of
from stellaris_jax.engine.mesh import THREADS, compile_for_backend

FOLDER = "programs"
"""Folder of programs, within that of JAX's compilation cache."""
LARGEST = 1 << 30
"""Largest sum of the sizes of kept programs, in bytes; the least recently used ones are deleted."""
MOST_NUMBERS = 1 << 22
"""Most numbers of arrays that are kept."""
VARIABLES = ("XLA_", "JAX_", "TF_", "NPROC")
"""Beginnings of environment variables that programs may depend on."""
PRIVATE = 0o700
"""Permissions of the folder."""
OURS = ("scripts", "benchmarks", "studies")
"""Folders of a checkout whose modules define no parts of programs."""

SWITCHING = threading.RLock()
"""Lock of the switch of JAX's own cache, which is one for all threads."""

INSIDE = {"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape"}
"""Custom calls that XLA itself resolves."""

Compile = Callable[[jax.stages.Lowered], jax.stages.Compiled]


class Untold(Exception):
    """A program's identity cannot be told."""


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


# What programs are made from ------------------------------------------------------------------------------------------


def text_of(value: Any) -> str:
    """Text that is the same for equal values only. Raises Untold for objects other than settings.

    >>> text_of(("a", 1, {"b": None}))
    "('a', 1, {'b': None})"
    """
    if value is None or type(value) in (bool, int, float, str):
        return repr(value)
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, tuple | list):
        return f"({', '.join(map(text_of, value))})"
    if isinstance(value, dict):
        return f"{{{', '.join(sorted(f'{text_of(key)}: {text_of(one)}' for key, one in value.items()))}}}"
    kind: Any = type(value)
    if issubclass(kind, Numbered):  # its floats are inputs of programs
        names = [name for name in options_of(kind) if name not in numbers_of(kind)]
    elif is_dataclass(kind):
        names = [entry.name for entry in fields(kind)]
    else:
        raise Untold(f"{kind.__name__} is no setting")
    named = {name: getattr(value, name) for name in names}
    return f"{text_of(kind)}{text_of(named)}"


def surroundings() -> str:
    """Text of all that programs depend on besides their own settings: code, JAX's configuration, the machine.

    Raises Untold if the sources are not those that this process has imported.
    """
    if (code := _code()) is None:
        raise Untold("the sources have changed since this process began")
    values = {name: value for name, value in jax.config.values.items() if "cache" not in name}
    names = (name for name in os.environ if name.startswith(VARIABLES) and "CACHE" not in name)
    devices = [(device.platform, device.device_kind, device.id) for device in jax.devices()]
    versions = (sys.version, jax.devices()[0].client.platform_version)
    jax_text = f"{sorted(values.items(), key=lambda item: item[0])!r}\n{sorted((n, os.environ[n]) for n in names)}"
    threads = (cores(), THREADS)
    return f"{code.digest}\n{versions}\n{devices}\n{threads} {cpu_features()}\n{jax_text}"


class Code(NamedTuple):
    """Code that programs are made with.

    Attributes:
      digest: digest of this package's sources, and of names, versions and times of installation of all packages.
      sources: names, sizes and times of the last change of this package's sources.
    """

    digest: str
    sources: list[tuple[str, int, int]]


@cache
def _code() -> Code | None:
    """Code of this process; `None` if a source was written after the process had begun to import it."""
    digest = hashlib.sha256()
    root = Path(stellaris_jax.__file__).parent
    sources = _sources()
    if any(written > (stellaris_jax.IMPORTED - 1.0) * 1e9 for _, _, written in sources):
        return None
    for name, _, _ in sources:
        digest.update(f"{name}\n".encode() + read_bytes(root / name) + b"\0")
    for place in _installed():
        with suppress(OSError):
            packages = [entry for entry in os.scandir(place) if entry.name.endswith((".dist-info", ".egg-info"))]
            digest.update(repr(sorted((entry.name, entry.stat().st_mtime_ns) for entry in packages)).encode())
    return Code(digest.hexdigest(), sources)


def _sources() -> list[tuple[str, int, int]]:
    """Sources of this package: their names, sizes, and times of the last change in nanoseconds."""
    root = Path(stellaris_jax.__file__).parent
    files = ((path.relative_to(root).as_posix(), path.stat()) for path in sorted(root.rglob("*.py")))
    return [(name, about.st_size, about.st_mtime_ns) for name, about in files]


@cache
def _installed() -> tuple[str, ...]:
    """Folders of installed packages and of Python's own modules."""
    named = ("stdlib", "platstdlib", "purelib", "platlib", "scripts")
    found = [sysconfig.get_path(name) for name in named]
    found += [place for place in sys.path if place.endswith(("site-packages", "dist-packages"))]
    return tuple(dict.fromkeys(found))


def foreign_modules() -> Iterator[str]:
    """Imported modules that may define parts of programs: not installed, not Python's own, and not ours."""
    root = Path(stellaris_jax.__file__).parent
    places = (*_installed(), str(root), *(str(root.parent / name) for name in OURS))
    homes = tuple(f"{place}{os.sep}" for place in places)
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if (file is None and name == "__main__") or (file is not None and not os.path.abspath(file).startswith(homes)):
            yield name


# Files ----------------------------------------------------------------------------------------------------------------


def _folder() -> Path | None:
    """Folder of programs, made if need be; `None` if there is no such folder that only this user can open."""
    cache_dir = jax.config.values["jax_compilation_cache_dir"]
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
            jax.config.update("jax_enable_compilation_cache", False)
            compilation_cache.reset_cache()
            yield
        finally:
            jax.config.update("jax_enable_compilation_cache", before)
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
    """Write a file, unless sources have changed meanwhile, so that parts imported late may be newer than the key."""
    if (code := _code()) is not None and code.sources == _sources():
        write_checked(path, data)
        _bound(path.parent)


def _bound(folder: Path) -> None:
    """Delete the least recently used programs above `LARGEST`; other processes may write and delete meanwhile."""
    entries = []
    with suppress(OSError):
        for entry in os.scandir(folder):
            with suppress(OSError):
                about = entry.stat(follow_symlinks=False)
                entries.append((about.st_mtime_ns, about.st_size, entry.path))
    total = 0
    for _, size, path in sorted(entries, reverse=True):
        total += size
        if total > LARGEST:
            with suppress(OSError):
                os.unlink(path)
