"""Files of a cache behind a checksum: a damaged one reads as if it were not there."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

from stellaris_jax.base.inputs import DOCUMENT, read_bytes
from stellaris_jax.base.outputs import write_atomically

CHECKSUM = 32
"""Bytes of the checksum, which come first."""


def read_checked(path: Path, limit: int = DOCUMENT) -> bytes | None:
    """Contents of a file; `None` if there is none, it is damaged, or it has more than `limit` bytes."""
    try:
        data = read_bytes(path, CHECKSUM + limit)
    except OSError:
        return None
    checksum, contents = data[:CHECKSUM], data[CHECKSUM:]
    return contents if hashlib.sha256(contents).digest() == checksum else None


def write_checked(path: Path, contents: bytes) -> None:
    """Replace a file atomically, if its folder can be written."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, hashlib.sha256(contents).digest() + contents)
