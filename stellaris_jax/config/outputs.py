"""Places that will be written to after much work: found out before it."""

from __future__ import annotations

import os
import tempfile
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
