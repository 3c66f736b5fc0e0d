"""Log of the actions that host environments have taken, in one append-only file.

Such environments cannot be saved, but each is a function of its seed and its actions: a resumed run replays the
actions. A checkpoint holds a mark in the file; data after the mark belong to a later or an unfinished checkpoint.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stellaris_jax.base import inputs
from stellaris_jax.base.arrays import read_array
from stellaris_jax.base.outputs import open_for_update

Mark = dict[str, Any]
"""Mark of the file's end at a checkpoint, as JSON data: `arrays`, `bytes` and the `digest` of those bytes."""


class ActionLogError(ValueError):
    """Error: the file does not match its mark."""


class ActionLog:
    """Log of arrays in a file, in the order they were appended."""

    def __init__(self, path: Path):
        self.path = path
        self._arrays, self._bytes, self._digest = 0, 0, hashlib.sha256()

    def append(self, arrays: Sequence[np.ndarray]) -> Mark:
        """Write arrays after those appended or read so far, truncating the rest of the file; returns the mark."""
        buffer = io.BytesIO()
        for array in arrays:
            np.save(buffer, array, allow_pickle=False)
        data = buffer.getvalue()
        with open_for_update(self.path) as file:
            file.seek(self._bytes)
            file.write(data)
            file.truncate()
            file.flush()
            os.fsync(file.fileno())
        self._arrays, self._bytes = self._arrays + len(arrays), self._bytes + len(data)
        self._digest.update(data)
        return {"arrays": self._arrays, "bytes": self._bytes, "digest": self._digest.hexdigest()}

    def read(self, mark: Mark) -> Iterator[np.ndarray]:
        """Read the arrays up to a mark; later appends go after it.

        Raises ActionLogError if the file is missing, shorter, or of other contents.
        """
        digest, left = hashlib.sha256(), mark["bytes"]
        try:
            with inputs.open_regular(self.path) as file:
                while left > 0 and (block := file.read(min(left, 1 << 20))):
                    digest.update(block)
                    left -= len(block)
                if left > 0 or digest.hexdigest() != mark["digest"]:
                    raise ActionLogError(f"{self.path} is damaged")
                self._arrays, self._bytes, self._digest = mark["arrays"], mark["bytes"], digest
                file.seek(0)
                for _ in range(mark["arrays"]):
                    yield read_array(file, mark["bytes"] - file.tell())
        except OSError as error:
            raise ActionLogError(f"{self.path} cannot be read ({error.strerror})") from error

    def clear(self) -> None:
        """Start an empty file with the next append."""
        self._arrays, self._bytes, self._digest = 0, 0, hashlib.sha256()
