"""Plans, shared by runs that differ in nothing which planning depends on, such as a grid of learning rates."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable

import jax

from stellaris_jax.config.tree import Config
from stellaris_jax.engine.spec import ProgramSpec
from stellaris_jax.timeline.scaling import is_adaptive
from stellaris_jax.training.chunk import Chunk

SHARED = 2**28
"""Bytes of plans that the runs of a sweep keep for each other."""

GRADIENT_BYTES = 550
"""What Python keeps of a simulated gradient, its group's share included; measured."""


class Plans:
    """Chunks that several runs execute: planned by the first that asks, kept for the others.

    Args:
      limit: bytes that are kept; 0 for a run that shares with nobody. Where they do not suffice, the chunks of the runs
        that were asked for longest ago go, and then nothing more is kept of the ones at hand.
    """

    def __init__(self, limit: int = 0):
        self.limit = limit
        self.size = 0
        self._kept: OrderedDict[Hashable, dict[tuple[int, int], Chunk]] = OrderedDict()
        self._lock = threading.Lock()
        self._planning: dict[Hashable, threading.Lock] = {}

    def chunk(self, run: Hashable, begin: int, size: int, plan: Callable[[], Chunk]) -> Chunk:
        """The chunk of `size` rounds from round `begin` on, of the runs that `run` stands for; `None` shares nothing.

        Whoever asks while another plans it waits for that.
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
        size = size_of(chunk)
        while self.size + size > self.limit and next(iter(self._kept)) != run:
            _, gone = self._kept.popitem(last=False)
            self.size -= sum(map(size_of, gone.values()))
        if self.size + size <= self.limit:
            self._kept[run][place] = chunk
            self.size += size


def size_of(chunk: Chunk) -> int:
    """Bytes that a chunk takes, about."""
    gradients = sum(len(group.gradients) for row in chunk.rounds for record in row for group in record.groups)
    return sum(array.nbytes for array in jax.tree.leaves(chunk.plans)) + GRADIENT_BYTES * gradients


def shared_by(config: Config, spec: ProgramSpec) -> Hashable:
    """All that the plans of a run depend on; `None` where they depend on what is learned."""
    if is_adaptive(config):
        return None
    seeds = (config.seed, config.num_seeds)
    # Learners' options and weights are the system's; of numbers of the algorithm only the schedule is planned.
    schedule = config.algorithm.anneal and config.total_steps
    return spec, config.system, config.platform, config.delays, config.scaling, seeds, schedule
