"""Texts that commands print, kept in the user's cache, so that they are there before anything heavy is imported."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from stellaris_jax.base.checked_files import read_checked, write_checked
from stellaris_jax.base.commands import PACKAGE
from stellaris_jax.base.outputs import cache_folder
from stellaris_jax.base.registry import register

WIDTH = 120
"""Most columns of a text, and its width if the output is no terminal."""


def columns() -> int:
    """Width of texts in this terminal."""
    return min(WIDTH, shutil.get_terminal_size((WIDTH, 0)).columns)


def stored(name: str, made_for: str, make: Callable[[], str]) -> str:
    """Text that depends on the package, its configurations and `made_for` alone; made anew when one of them changes.

    It is not kept while anything from outside the package is registered.

    Args:
      name: name of the text's file.
      made_for: anything else that the text depends on.
      make: makes the text.
    """
    folder = cache_folder()
    if folder is None or register.is_extended():
        return make()
    first = f"{sha256(f'{made_for}{list(_sources())}'.encode()).hexdigest()}\n".encode()
    if (data := read_checked(folder / name, own=True)) and data.startswith(first):
        return data.removeprefix(first).decode()
    text = make()
    if not register.is_extended():  # entry points of installed packages are read meanwhile
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            write_checked(folder / name, first + text.encode())
    return text


def _sources() -> Iterator[tuple[str, int, int]]:
    """Paths, sizes and times of change of what a text is made from: sources, configurations, installed packages."""
    yield sys.version, sys.hexversion, os.stat(sys.executable).st_mtime_ns
    for root in (PACKAGE, PACKAGE.parent / "configs"):
        for folder, _, files in sorted(os.walk(root, followlinks=True)):
            for path in (Path(folder, file) for file in sorted(files) if file.endswith((".py", ".yaml"))):
                with suppress(OSError):
                    about = path.stat()
                    yield str(path), about.st_size, about.st_mtime_ns
    for place in sys.path:
        with suppress(OSError):
            installed = (name for name in os.listdir(place or ".") if name.endswith((".dist-info", ".egg-info")))
            yield " ".join(sorted(installed)), 0, 0
