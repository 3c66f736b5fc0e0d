"""Cache of plans, shared by runs whose differences do not affect planning, such as a grid of learning rates."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable

import jax

from stellaris_jax.config.tree import Config
from stellaris_jax.engine.chunk import Chunk
from stellaris_jax.engine.spec import ProgramSpec
from stellaris_jax.timeline.scaling import is_adaptive

SHARED = 2**28
"""Bytes of plans that the runs of a sweep share."""

GRADIENT_BYTES = 550
"""Python's memory for a simulated gradient in bytes, its share of the group included; measured."""


class ChunkCache:
    """LRU cache of chunks that several runs execute: the first run plans a chunk, the others reuse it.

    Args:
      limit: capacity in bytes; 0 for a run that shares nothing. A full cache evicts the least recently used runs'
        chunks, then stops to keep new chunks of the current run.
    """

    def __init__(self, limit: int = 0):
        self.limit = limit
        self.size = 0
        self._kept: OrderedDict[Hashable, dict[tuple[int, int], Chunk]] = OrderedDict()
        self._lock = threading.Lock()
        self._planning: dict[Hashable, threading.Lock] = {}

    def chunk(self, run: Hashable, begin: int, size: int, plan: Callable[[], Chunk]) -> Chunk:
        """Chunk of `size` rounds from round `begin` on, planned at most once; a second caller waits for the first.

        Args:
          run: key of the runs that share the chunk; `None` shares nothing.
          begin: first round.
          size: number of rounds.
          plan: plans the chunk.
        """
        if run is None or self.limit == 0:
            return plan()
        place = (begin, size)
        with self._lock:
            planning = self._planning.setdefault((run, place), threading.Lock())
        with planning:
            try:
                with self._lock:
                    self._kept[run] = kept = self._kept.pop(run, {})
                    if place in kept:
                        return kept[place]
                chunk = plan()
                with self._lock:
                    self._keep(run, place, chunk)
                return chunk
            finally:
                with self._lock:
                    self._planning.pop((run, place), None)

    def _keep(self, run: Hashable, place: tuple[int, int], chunk: Chunk) -> None:
        kept = self._kept.setdefault(run, {})  # it may have been evicted while it planned
        size = size_of(chunk)
        while self.size + size > self.limit and next(iter(self._kept)) != run:
            _, evicted = self._kept.popitem(last=False)
            self.size -= sum(map(size_of, evicted.values()))
        if self.size + size <= self.limit:
            kept[place] = chunk
            self.size += size


def size_of(chunk: Chunk) -> int:
    """Approximate bytes of a chunk."""
    gradients = sum(len(group.gradients) for row in chunk.rounds for record in row for group in record.groups)
    return sum(array.nbytes for array in jax.tree.leaves(chunk.plans)) + GRADIENT_BYTES * gradients


def shared_by(config: Config, spec: ProgramSpec) -> Hashable:
    """Key made of everything that a run's plans depend on; `None` if they depend on what is learned."""
    if is_adaptive(config):
        return None
    seeds = (config.seed, config.num_seeds)
    # Learners' options and weights belong to the system; of the algorithm's numbers only the schedule affects plans.
    schedule = config.algorithm.anneal and config.total_steps
    return spec, config.system, config.platform, config.delays, config.scaling, seeds, schedule
