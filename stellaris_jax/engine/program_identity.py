"""Identity of compiled programs: text of what they are made from.

This is the parts of the configuration that shape them, the sources of this package, files of the packages that programs
are traced through, versions of all others, JAX's configuration, and the machine.
"""

from __future__ import annotations

import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import jax

import stellaris_jax
from stellaris_jax.base.commands import PROGRAM
from stellaris_jax.base.inputs import read_bytes
from stellaris_jax.base.machine import cores, cpu_features
from stellaris_jax.config.optioned import Numbered, numbers_of, options_of
from stellaris_jax.engine.mesh import THREADS

VARIABLES = ("XLA_", "JAX_", "TF_", "LIBTPU_", "NPROC")
"""Beginnings of environment variables that programs may depend on."""
HARMLESS = ("cache", "log_", "logging", "xla_python_client", "tf_cpp")
"""Parts of names, in lower case, of variables and of JAX's settings that change no program."""
OURS = ("scripts", "benchmarks", "studies")
"""Folders of a checkout whose modules define no parts of programs."""
TRACED = ("brax", "chex", "flax", "gymnax", "jax", "matfree", "mujoco", "mujoco_playground", "optax")
"""Packages that programs are traced through. Some users edit them in place."""
CODE = (".py", ".xml", ".so")
"""Ends of the names of their files that programs depend on."""
FOUND = (".dist-info", ".egg-info", ".py", ".pth")
"""Ends of the names of what a folder of packages tells of its packages, and of single modules."""

File = tuple[str, int, int]
"""Name, size, and time of the last change in nanoseconds: of the file's state, which nobody can set back."""


class Untold(Exception):
    """A program's identity cannot be told."""


def text_of(value: Any) -> str:
    """Text that is the same for equal values only. Raises Untold for objects other than settings.

    >>> text_of(("a", 1, {"b": None}))
    "('a', 1, {'b': None})"
    """
    if value is None or type(value) in (bool, int, float, str):
        return repr(value)
    if isinstance(value, type):
        if value.__module__ == "__main__":
            raise Untold(f"{value.__qualname__} has no module")
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
    if (found := code()) is None:
        raise Untold("code has changed since this process began")
    values = {name: value for name, value in jax.config.values.items() if _matters(name)}
    names = (name for name in os.environ if name.startswith(VARIABLES) and _matters(name))
    devices = [(device.platform, device.device_kind, device.id) for device in jax.devices()]
    versions = (sys.version, jax.devices()[0].client.platform_version)
    jax_text = f"{sorted(values.items(), key=lambda item: item[0])!r}\n{sorted((n, os.environ[n]) for n in names)}"
    threads = (cores(), THREADS)
    return f"{found.digest}\n{versions}\n{devices}\n{threads} {cpu_features()}\n{jax_text}"


def _matters(name: str) -> bool:
    """Whether programs may depend on a variable or a setting."""
    return not any(part in name.lower() for part in HARMLESS)


class Code(NamedTuple):
    """Code that programs are made with.

    Attributes:
      digest: digest of this package's sources, and of `packages`.
      sources: this package's sources.
      packages: files of the packages that programs are traced through, and what tells of all installed ones.
    """

    digest: str
    sources: list[File]
    packages: list[File]

    def is_current(self) -> bool:
        """Whether nothing has changed since."""
        return (self.sources, self.packages) == (_sources(), _packages())


@cache
def code() -> Code | None:
    """Code of this process; `None` if some of it was written after the process had begun to import it."""
    root = Path(stellaris_jax.__file__).parent
    sources, packages = _sources(), _packages()
    if any(changed > (stellaris_jax.IMPORTED - 1.0) * 1e9 for _, _, changed in (*sources, *packages)):
        return None
    digest = hashlib.sha256(repr(packages).encode())
    for name, _, _ in sources:
        digest.update(f"{name}\n".encode() + read_bytes(root / name) + b"\0")
    return Code(digest.hexdigest(), sources, packages)


def _sources() -> list[File]:
    """Sources of this package, by their paths in it."""
    root = Path(stellaris_jax.__file__).parent
    files = _files_below(str(root), (".py",))
    return sorted((os.path.relpath(name, root), size, changed) for name, size, changed in files)


def _packages() -> list[File]:
    """Files of `TRACED`, and what folders of packages tell."""
    homes = [os.path.dirname(found.origin) for name in TRACED if (found := find_spec(name)) and found.origin]
    return sorted([*(file for home in homes for file in _files_below(home, CODE)), *_listed(_installed())])


def _listed(places: Iterable[str]) -> Iterator[File]:
    """Entries of folders of packages that end in one of `FOUND`."""
    for place in places:
        with suppress(OSError), os.scandir(place) as entries:
            yield from (_file(entry) for entry in entries if entry.name.endswith(FOUND))


def _files_below(top: str, ends: tuple[str, ...]) -> Iterator[File]:
    """Files below a folder whose names end so."""
    folders = [top]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir():
                    folders += [entry.path] if entry.name != "__pycache__" and not entry.is_symlink() else []
                elif entry.name.endswith(ends):
                    yield _file(entry)


def _file(entry: os.DirEntry[str]) -> File:
    about = entry.stat()
    return entry.path, about.st_size, about.st_ctime_ns


@cache
def _installed() -> tuple[str, ...]:
    """Folders of installed packages and of Python's own modules."""
    named = ("stdlib", "platstdlib", "purelib", "platlib", "scripts")
    found = [sysconfig.get_path(name) for name in named]
    found += [place for place in sys.path if place.endswith(("site-packages", "dist-packages"))]
    return tuple(dict.fromkeys(found))


def foreign_modules() -> Iterator[str]:
    """Imported modules that may define parts of programs: not installed, not Python's own, and not ours.

    `__main__` is foreign unless it is ours: launchers, debuggers and workers run somebody's code under that name.
    """
    root = Path(stellaris_jax.__file__).parent
    ours = tuple(f"{place}{os.sep}" for place in (root, *(root.parent / name for name in OURS)))
    homes = (*ours, *(f"{place}{os.sep}" for place in _installed()))
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name == "__main__":
            place = os.path.realpath(file) if file else ""
            if not (place.startswith(ours) or os.path.basename(place) == PROGRAM):
                yield name
        elif file is not None and not os.path.abspath(file).startswith(homes):
            yield name
