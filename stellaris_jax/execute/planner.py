"""Planner: simulates rounds ahead of their execution and lays them out as chunks for the engine."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from copy import deepcopy
from functools import cache, wraps
from itertools import chain, islice
from typing import Any, TypeVar, cast

import numpy as np

from stellaris_jax.base.machine import cores
from stellaris_jax.engine.chunk import Chunk
from stellaris_jax.engine.chunk_cache import ChunkCache, shared_by
from stellaris_jax.execute.schedule import Schedule
from stellaris_jax.timeline import Plan, Round, build_plan, minibatch_order
from stellaris_jax.timeline.collection import CollectionSizes, Collector, occupancy
from stellaris_jax.timeline.plan import build_collection_plan

UNKNOWN = -1
COLLECTION = "collection"
"""Key of the segments that are not rolled yet, in the states of timelines."""

LARGE = 2**14
"""Samples of a fragment, over all epochs, from which on its minibatches are worth a thread."""

F = TypeVar("F", bound=Callable[..., Any])
A = TypeVar("A")
B = TypeVar("B")


def without_collection(function: F) -> F:
    """Decorator: run a function without Python's garbage collector; it makes many objects and no reference cycles.

    The collector would take a third of the time, because it also traverses all of JAX's objects.
    """

    @wraps(function)
    def run(*arguments: Any) -> Any:
        enabled = gc.isenabled()
        gc.disable()
        try:
            return function(*arguments)
        finally:
            if enabled:
                gc.enable()

    return cast(F, run)


@cache
def _threads() -> ThreadPoolExecutor:
    """Thread pool that draws minibatches, one thread per core."""
    return ThreadPoolExecutor(cores(), "minibatches")


def concurrently(function: Callable[[A], B], keys: Iterable[A]) -> Iterator[B]:
    """Results of a function in the order of `keys`, by one thread per core; only a few are kept at a time."""
    under_way: deque[Future[B]] = deque()
    for key in keys:
        under_way.append(_threads().submit(function, key))
        if len(under_way) > 2 * cores():
            yield under_way.popleft().result()
    while under_way:
        yield under_way.popleft().result()


class Planner:
    """Simulator of a run's next rounds, which it lays out as chunks, on demand or while the device is busy.

    Args:
      schedule: schedule of the run, whose timelines are simulated.
      chunks: cache of chunks, shared with other runs; by default nothing is shared.
    """

    def __init__(self, schedule: Schedule, chunks: ChunkCache | None = None):
        self.schedule, self.chunks = schedule, chunks or ChunkCache()
        self.shape, self.layout = schedule.spec.shape, schedule.spec.minibatch_layout
        collection = self.shape.collection
        self._collectors = [Collector(collection, self.shape.ring) for _ in schedule.seeds] if collection else []
        self._sizes = [self._least_sizes() for _ in schedule.blocks] if collection else []
        # Recorded rounds are no function of the configuration.
        self._shared_by = shared_by(schedule.config, schedule.spec) if schedule.recorded is None else None
        self._simulated = 0  # rounds simulated so far; UNKNOWN while a round is being simulated
        self._chunks: deque[Chunk] = deque()  # planned, in order, not executed yet

    def _least_sizes(self) -> CollectionSizes:
        """Smallest capacities of collections; recorded rounds are known beforehand, so that they need one program."""
        sizes, recorded = CollectionSizes.least(self.shape), self.schedule.recorded
        if recorded is not None and self.shape.collection is not None:
            collector = Collector(self.shape.collection, self.shape.ring)
            for round_ in recorded.timeline.rounds:
                sizes = sizes.fit(collector.steps(round_.record.sequence))
        return sizes

    def next(self, in_flight: list[int] | None = None) -> Chunk:
        """Next chunk to execute; planned now if it was not.

        Args:
          in_flight: `[S]`, actors whose fragments are already under way.
        """
        if self._chunks and self._chunks[0].begin < self.schedule.pause < self._chunks[0].end:
            self.restart()  # planned before the pause was known
        if not self._chunks:
            begin = self.schedule.round
            self._chunks.append(self.plan(begin, self.schedule.size(begin), in_flight))
        return self._chunks[0]

    def plan_ahead(self, in_flight: list[int] | None = None) -> None:
        """Plan the chunk after the next one, unless that depends on the next one's results; see `next`."""
        begin, schedule = self.next(in_flight).end, self.schedule
        # After a pause the caller decides how long the next chunk is.
        known = begin < schedule.total_rounds and begin != schedule.pause and not schedule.adaptive
        if len(self._chunks) == 1 and known:
            self._chunks.append(self.plan(begin, self.schedule.size(begin), in_flight))

    def executed(self) -> None:
        """Move past the next chunk, which was executed."""
        self.schedule.advance(self._chunks.popleft())

    def restart(self) -> None:
        """Drop all planned chunks and continue from the schedule's state."""
        self._chunks.clear()
        self._simulate_from(self.schedule.round)

    def plan(self, begin: int, size: int, in_flight: list[int] | None = None) -> Chunk:
        """Simulate rounds `begin` to `begin + size - 1` and lay them out for the engine."""
        return self.chunks.chunk(self._shared_by, begin, size, lambda: self._plan(begin, size, in_flight))

    def _simulate_from(self, begin: int) -> None:
        """Restore the timelines to the end of the planned rounds, which is round `begin`."""
        states = self._chunks[-1].timelines if self._chunks else self.schedule.states
        for timeline, state in zip(self.schedule.timelines, states, strict=True):
            timeline.restore(deepcopy(state))
        for collector, state in zip(self._collectors, states, strict=bool(self._collectors)):
            collector.restore(state.get(COLLECTION, []))
        self._simulated = begin

    @without_collection
    def _plan(self, begin: int, size: int, in_flight: list[int] | None) -> Chunk:
        if begin != self._simulated:  # another run has planned the rounds between
            self._simulate_from(begin)
        self._simulated = UNKNOWN
        schedule, layout = self.schedule, self.layout
        actors, envs, widths = schedule.participants(in_flight)
        simulated = list(zip(schedule.timelines, actors, envs, strict=True))
        rounds = [
            [timeline.next_round(i, layout.gradients(begin + r, n)) for timeline, i, n in simulated]
            for r in range(size)
        ]
        self._simulated = begin + size
        factors = [schedule.learning_rate_factor(begin + r) for r in range(size)]

        filled: list[float] = []
        if self._collectors:
            plans, filled = self._collected(rounds, factors)
        else:
            plans = self._rolled(begin, rounds, factors, envs, widths)
        waves = [sum(plan.waves(r) for plan in plans) for r in range(size)]
        return Chunk(
            begin=begin,
            rounds=rounds,
            factors=factors,
            envs=envs,
            computed=[self.shape.wave_size * self.shape.seeds * number for number in waves],
            timelines=self._states(),
            plans=plans,
            widths=widths,
            collect_occupancy=filled,
        )

    def _rolled(
        self, begin: int, rounds: list[list[Round]], factors: list[float], envs: list[int], widths: list[int]
    ) -> list[Plan]:
        """Plans of rounds that each roll a fragment, one for each block of seeds."""
        schedule, layout, size = self.schedule, self.layout, len(rounds)

        def plan(block: slice, width: int) -> Plan:
            sizes = list(zip(schedule.seeds[block], envs[block], strict=True))
            keys = ((seed, begin + r, n) for r in range(size) for seed, n in sizes)

            def draw(key: tuple[int, int, int]) -> np.ndarray:
                seed, fragment, n = key
                return minibatch_order(seed, fragment, layout, n, width)

            # Drawn a few at a time while they are laid out, so that none keeps memory for long.
            samples = self.shape.gradients * self.shape.batch
            drawn = concurrently(draw, keys) if samples >= LARGE else map(draw, keys)
            orders = (islice(drawn, len(sizes)) for _ in range(size))
            return build_plan(self.shape, [row[block] for row in rounds], orders, factors, [envs[block]] * size)

        return list(map(plan, schedule.blocks, widths))

    def _collected(self, rounds: list[list[Round]], factors: list[float]) -> tuple[list[Plan], list[float]]:
        """Plans of independent actors' rounds, one for each block of seeds, and their `Chunk.collect_occupancy`."""
        steps = [
            [one.steps(round_.sequence) for one, round_ in zip(self._collectors, row, strict=True)] for row in rounds
        ]
        plans = []
        for place, block in enumerate(self.schedule.blocks):
            seeds = self.schedule.seeds[block]

            def order(seed: int, batch: int, seeds: list[int] = seeds) -> np.ndarray:
                return minibatch_order(seeds[seed], batch, self.layout)

            chosen = [row[block] for row in steps]
            plan, self._sizes[place] = build_collection_plan(self.shape, chosen, order, factors, self._sizes[place])
            plans.append(plan)
        return plans, [occupancy(chain.from_iterable(row)) for row in steps]

    def _states(self) -> list[dict[str, Any]]:
        """States of the timelines, with the segments that are not rolled yet."""
        states = [timeline.state() for timeline in self.schedule.timelines]
        for collector, state in zip(self._collectors, states, strict=bool(self._collectors)):
            state[COLLECTION] = collector.state()
        return states
