"""Files of a replay buffer: a checkpoint writes the transitions that are new, and names the files that hold the rest.

A file holds the transitions of consecutive batches and never changes. So the cost of a checkpoint does not grow with
the buffer. Files that none of the kept checkpoints needs are deleted.
"""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from stellaris_jax.base import inputs
from stellaris_jax.base.arrays import read_array
from stellaris_jax.base.errors import RunError
from stellaris_jax.base.outputs import refuse_links, rewriting
from stellaris_jax.engine.learner import DataLoader
from stellaris_jax.engine.replay_buffer import Transitions

SUFFIX = ".transitions"
SPARE = 2**16
"""Bytes of a file beside its arrays' elements."""


class ReplayLogError(ValueError):
    """Error: a file does not match what a checkpoint says of it."""


class Mark(NamedTuple):
    """Description of a file in a checkpoint.

    Attributes:
      first, end: numbers of its first batch, and of the one after its last.
      whole: batches that every seed had when it was written.
      digest: SHA-256 of its contents.
    """

    first: int
    end: int
    whole: int
    digest: str

    @property
    def name(self) -> str:
        """Name of the file."""
        return f"{self.first:012d}-{self.end:012d}{SUFFIX}"


class ReplayLog:
    """Files of one run's replay buffer.

    Args:
      directory: the directory, made at the first save.
      keep: checkpoints whose files are kept.
      envs: environments of a batch (N).
      samples: transitions of a batch.
    """

    def __init__(self, directory: Path, keep: int, envs: int, samples: int):
        self.directory, self.envs, self.samples = directory, envs, samples
        self._marks: list[Mark] = []
        self._needed: deque[list[Mark]] = deque(maxlen=max(2, keep))

    def check(self) -> None:
        """Raise RunError if the directory holds something that a save could not replace."""
        if self.directory.is_symlink():
            raise RunError(
                f"{self.directory} is a link, through which nothing is written; put the folder in its place."
            )
        for path in sorted(self.directory.glob(f"*{SUFFIX}")):
            if not path.is_file():
                raise RunError(f"{path} is not a regular file; move it away.")

    def save(self, loader: DataLoader) -> list[list[Any]]:
        """Write the batches that are new; returns the marks of all files that the buffer is in, as JSON data.

        Args:
          loader: data loader of all seeds, every leaf `[S, ...]`.
        """
        counts, transitions = np.asarray(loader.stored), Transitions.of(loader)
        whole, end = int(counts.min()), int(counts.max())
        stored = max(leaf.shape[1] for leaf in jax.tree.leaves(transitions)) // self.samples
        # A seed that was behind writes what it missed with the next file, which is read after the one before.
        first = max(self._marks[-1].whole if self._marks else 0, end - stored)
        if first < end:
            digest = self._write(transitions, first, end)
            self._marks.append(Mark(first, end, whole, digest))
        self._marks = [mark for mark in self._marks if mark.end > end - stored]
        self._needed.append([*self._marks])
        self._prune()
        return [list(mark) for mark in self._marks]

    def read(self, marks: list[list[Any]], shapes: Transitions) -> Transitions:
        """Transitions of a buffer, NumPy arrays of these shapes; places that were never written are 0.

        Raises:
          ReplayLogError: a file is missing or of other contents.
        """
        self._marks = [Mark(int(first), int(end), int(whole), str(digest)) for first, end, whole, digest in marks]
        leaves, structure = jax.tree.flatten(shapes)
        buffer = [np.zeros(leaf.shape, leaf.dtype) for leaf in leaves]
        for mark in self._marks:
            path = self.directory / mark.name
            try:
                limit = SPARE * len(leaves) + sum(leaf.nbytes for leaf in buffer)
                with inputs.open_regular(path, limit) as file:
                    if inputs.digest_of(path) != mark.digest:
                        raise ReplayLogError(f"{path} is damaged")
                    for leaf, rows in zip(buffer, self._rows(mark.first, mark.end, shapes), strict=True):
                        leaf[:, rows] = read_array(file, leaf.nbytes)
            except OSError as error:
                raise ReplayLogError(f"{path}: {inputs.reason(error)}") from error
        self._needed.append([*self._marks])
        read: Transitions = jax.tree.unflatten(structure, buffer)
        return read

    def _rows(self, first: int, end: int, shapes: Transitions) -> list[np.ndarray]:
        """Rows of consecutive batches in each leaf: of the batches that it still has.

        Frames have some more: those of the last observations.
        """
        ahead = [0] * len(jax.tree.leaves(shapes.samples)) + [self.envs] * len(jax.tree.leaves(shapes.pixels))
        made = []
        for leaf, further in zip(jax.tree.leaves(shapes), ahead, strict=True):
            begin = max(first, end - leaf.shape[1] // self.samples) * self.samples
            made.append(np.arange(begin, end * self.samples + further) % leaf.shape[1])
        return made

    def _write(self, transitions: Transitions, first: int, end: int) -> str:
        """Write the file of some batches; returns its digest."""
        refuse_links(self.directory)
        self.directory.mkdir(exist_ok=True)
        path = self.directory / Mark(first, end, 0, "").name
        with rewriting(path) as file:
            for leaf, rows in zip(jax.tree.leaves(transitions), self._rows(first, end, transitions), strict=True):
                np.save(file, np.asarray(jax.device_get(leaf[:, rows])), allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())
        return inputs.digest_of(path)

    def _prune(self) -> None:
        """Delete files that no kept checkpoint needs."""
        needed = {mark.name for marks in self._needed for mark in marks}
        for path in self.directory.glob(f"*{SUFFIX}"):
            if path.name not in needed:
                path.unlink(missing_ok=True)
