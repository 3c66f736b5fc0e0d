"""Files that are written: that they can be is found out before the work; afterwards they are replaced in one step."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stellaris_jax.config.schema import ConfigError


def check_output(option: str, path: Path) -> None:
    """Make the directory of a file that will be written after much work. Raises ConfigError if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir() or (path.exists() and not os.access(path, os.W_OK)):
            raise PermissionError
        _probe(path.parent)
    except OSError:
        raise ConfigError(f"{option}={path} cannot be written.") from None


def check_directory(option: str, path: Path) -> None:
    """Make a directory that files will be written to. Raises ConfigError if that cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        _probe(path)
    except OSError:
        raise ConfigError(f"{option}={path} cannot be written.") from None


def _probe(directory: Path) -> None:
    """Raise OSError unless files can be made here; permissions are not the whole of it, least of all for root."""
    with tempfile.TemporaryFile(dir=directory):
        pass


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a hidden file beside `path`, of the same ending, which takes its place in one step when the context ends.

    Left by an exception, `path` is what it was and the other is gone.
    """
    fresh = path.with_name(f".{path.stem}.tmp{path.suffix}")
    try:
        yield fresh
        os.replace(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace a file's contents in one step."""
    with replacing(path) as fresh:
        fresh.write_bytes(content.encode() if isinstance(content, str) else content)
