"""Files of a cache behind a checksum of their name and contents: a damaged one reads as if it were not there."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from stellaris_jax.base.inputs import DOCUMENT, open_regular
from stellaris_jax.base.outputs import write_atomically

CHECKSUM = 32
"""Bytes of the checksum, which come first."""


def read_checked(path: Path, limit: int = DOCUMENT, own: bool = False) -> bytes | None:
    """Contents of a file; `None` if there is none, it is damaged, or it cannot be read.

    Args:
      path: the file.
      limit: most bytes.
      own: whether a file that belongs to another user reads as if it were not there.
    """
    try:
        with open_regular(path, CHECKSUM + limit) as file:
            if own and os.fstat(file.fileno()).st_uid != os.geteuid():
                return None
            data = file.read(CHECKSUM + limit + 1)
    except OSError:
        return None
    checksum, contents = data[:CHECKSUM], data[CHECKSUM:]
    return contents if _checksum(path, contents) == checksum else None


def write_checked(path: Path, contents: bytes) -> None:
    """Replace a file atomically, if its folder is there and can be written."""
    with suppress(OSError):
        write_atomically(path, _checksum(path, contents) + contents)


def _checksum(path: Path, contents: bytes) -> bytes:
    """Checksum of a file. Under another name its contents would be taken for something else."""
    return hashlib.sha256(path.name.encode() + b"\0" + contents).digest()
