"""Rounds of independent actors in the simulator: a round lasts until its batch is complete.

An aggregation that begins in the instant in which a round ends belongs to the next round, and so does all that follows
it in that instant (`stellaris_jax.timeline.data_rounds`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from stellaris_jax.timeline.coordinator import Action, Coordinator
from stellaris_jax.timeline.data_rounds import NextUpdate
from stellaris_jax.timeline.events import Event, FragmentLoaded
from stellaris_jax.timeline.free_actors import FreeActors
from stellaris_jax.timeline.records import Gradient, Round, Usage
from stellaris_jax.timeline.sharing import Contention

Measure = Callable[[Round, list[int]], list[tuple[int, bool]]]
"""Function from the round so far, and the shards whose segments have just begun, to each segment's steps and whether
every environment has ended an episode with it."""


class Simulation(Protocol):
    """Parts of a timeline (`stellaris_jax.timeline.simulate.Timeline`) that rounds of independent actors need."""

    coordinator: Coordinator
    free: FreeActors | None
    measure: Measure | None
    contention: Contention | None
    spent: Usage
    tick: int
    fragment: int
    loads: bool

    @property
    def streams(self) -> Mapping[str, Any]: ...
    @property
    def now(self) -> float: ...
    @property
    def usage(self) -> Usage: ...
    def happen(self, record: Round) -> None: ...
    def invoke(self, gradient: Gradient) -> None: ...
    def pace(self, contention: Contention) -> None: ...
    def do(self, actions: Sequence[Action], record: Round) -> None: ...
    def loaded(self, fragment: int, record: Round) -> None: ...
    def schedule(self, delay: int, event: Event) -> None: ...


def batch_round(timeline: Simulation, record: Round, gradients: int) -> None:
    """Simulate until the batch of a round is complete.

    Args:
      timeline: timeline with independent actors.
      record: record of the round, which is filled in.
      gradients: minibatches of a batch.
    """
    free = timeline.free
    assert free is not None, "actors are not independent"
    if free.next_update is not None:
        free.next_update.begin(record)
    _settle(timeline, free, record, gradients)
    while free.queue.completed <= record.index:
        timeline.happen(record)
        _settle(timeline, free, record, gradients)
    timeline.fragment += 1
    timeline.spent.seconds = timeline.tick
    free.next_update = NextUpdate.of(record, timeline.coordinator)
    free.end_round(record)
    record.usage = timeline.usage


def _settle(timeline: Simulation, free: FreeActors, record: Round, gradients: int) -> None:
    """Do all that can be done now: drop and begin fragments, form batches, start learners.

    Once the round's batch is complete, an update that has begun or must be forced is left to the next round.
    """
    coordinator, queue = timeline.coordinator, free.queue
    while True:
        queue.clock = coordinator.clock
        while queue.completed < queue.formed and coordinator.remaining[queue.completed] == 0:
            del coordinator.remaining[queue.completed]
            queue.completed += 1
        over = queue.completed > record.index
        if over and coordinator.aggregating:
            return
        changed = True
        while changed:
            changed = free.evict(timeline.tick, record) | _form(timeline, free, record, gradients)
            while free.begin(timeline.tick, record):
                changed = True
        started = list(map(timeline.invoke, coordinator.starts()))
        # A batch without minibatches, before learning starts, is complete as soon as it is formed.
        if started or (queue.completed < queue.formed and coordinator.remaining[queue.completed] == 0):
            continue
        if timeline.contention is not None:
            timeline.pace(timeline.contention)
        if free.unknown:
            _measure(timeline, free, record)
        # No learner may take the pointers that there are, or actors can contribute nothing to the next batch.
        waiting = coordinator.running or coordinator.aggregating or queue.loading
        if over or waiting or not coordinator.queue or not (coordinator.pointers or queue.blocked):
            return
        if not (actions := coordinator.on_stall(timeline.now)):
            return
        timeline.do(actions, record)


def _measure(timeline: Simulation, free: FreeActors, record: Round) -> None:
    """Learn the lengths of segments that have just begun; without `measure` none ends before its last step."""
    shards, free.unknown = free.unknown, []
    whole = (free.layout.steps // free.layout.segments, False)
    lengths = [whole] * len(shards) if timeline.measure is None else timeline.measure(record, shards)
    for shard, (steps, ended) in zip(shards, lengths, strict=True):
        free.measured(shard, steps, ended, timeline.tick)


def _form(timeline: Simulation, free: FreeActors, record: Round, gradients: int) -> bool:
    """Form the next batch if no minibatch waits, and a learner does; returns whether there was one.

    Data are fresher if their batch is formed late. A loader that takes time does not wait for a learner.
    """
    coordinator = timeline.coordinator
    needed = timeline.loads or len(coordinator.running) < coordinator.learners
    batch = free.form(timeline.tick, record) if needed and not coordinator.pointers else None
    if batch is None:
        return False
    timeline.coordinator.remaining[batch.index] = gradients
    free.queue.loading = True
    loading = next(timeline.streams["loader"])
    if loading > 0:
        timeline.schedule(loading, FragmentLoaded(batch.index))
    else:
        timeline.loaded(batch.index, record)
    return True
