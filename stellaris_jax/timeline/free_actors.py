"""Independent actors in the simulator: shards that roll fragments one after the other, each at its own pace.

A fragment of shard a takes draws j P + i of the actors' stream, where j is its number and i the shard's actors of P.
So it takes as long as in `barrier` mode, where fragment j takes draws j P, ..., (j + 1) P - 1.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from operator import add
from typing import Any, NamedTuple

from stellaris_jax.base.errors import RunError
from stellaris_jax.config.system import SystemConfig
from stellaris_jax.config.tree import Config
from stellaris_jax.timeline.data_queue import DataQueue
from stellaris_jax.timeline.data_rounds import NextUpdate, complete_record
from stellaris_jax.timeline.delays import Stream
from stellaris_jax.timeline.events import ActorDied, Event, FragmentEnded, SegmentBegun
from stellaris_jax.timeline.platform import Containers
from stellaris_jax.timeline.record_json import as_data, record_of
from stellaris_jax.timeline.records import Batch, Fragment, Round, Segment, Usage
from stellaris_jax.timeline.ticks import SECOND

MOST_BEGUN = 100_000
"""Largest number of fragments that a shard may begin, on average, before the next batch is complete."""


MOST_AT_ONCE = 1_000
"""Largest number of them that a shard may begin, on average, at one moment, beside those that the data queue holds."""


class ActorLayout(NamedTuple):
    """Shards of independent actors.

    Attributes:
      shards: number A of shards.
      actors: number P of the platform's actors, which the shards share.
      segments: segments S of a fragment.
      steps: steps T of a fragment.
      follows: whether a fragment's duration follows its episodes.
    """

    shards: int
    actors: int
    segments: int
    steps: int
    follows: bool = False

    @classmethod
    def of(cls, config: Config) -> ActorLayout | None:
        """Layout of a configuration; `None` unless actors are independent."""
        shards = config.actor_shards
        if not shards:
            return None
        steps, follows = config.algorithm.rollout_length, config.delays.by == "episodes"
        return cls(shards, config.platform.actors, config.segments, steps, follows)

    def of_shard(self, shard: int) -> range:
        """Actors of a shard."""
        return range(shard * self.actors // self.shards, (shard + 1) * self.actors // self.shards)


class Streams(NamedTuple):
    """Random numbers of actors: durations in ticks, and chances of dying."""

    durations: Stream
    failures: Stream


class FreeActors:
    """Shards of actors, each of which begins its next fragment as soon as the data queue lets it.

    Args:
      system: options of actors and data admission.
      layout: the shards.
      passing: ticks to pass a policy or a trajectory.
      failure: probability that an attempt at a fragment dies.
      containers: containers of the actors.
      streams: random numbers.
      usage: counters, in ticks.
      schedule: function that schedules an event after a number of ticks.

    Attributes:
      next_update: update that began in the instant in which the last round ended; `None` without one.
    """

    def __init__(
        self,
        system: SystemConfig,
        layout: ActorLayout,
        passing: int,
        failure: float,
        containers: Containers,
        streams: Streams,
        usage: Usage,
        schedule: Callable[[int, Event], None],
    ):
        self.layout, self.passing, self.failure = layout, passing, failure
        self.containers, self.streams, self.usage, self.schedule = containers, streams, usage, schedule
        self.queue = DataQueue(system, layout.shards, usage)
        self.idle_since: dict[int, int] = dict.fromkeys(range(layout.shards), 0)
        self.begun: dict[int, int] = {}
        self.lasts: dict[int, int] = {}
        self.startups: dict[int, list[int]] = {}
        self.dies: dict[int, int] = {}
        self.batches: dict[int, Batch] = {}
        self.since_batch = 0
        self.begun_at, self.at_once = 0, 0
        self.rolled: dict[int, int] = {}
        self.unknown: list[int] = []
        self.next_update: NextUpdate | None = None

    def begin(self, tick: int, record: Round) -> bool:
        """Begin a fragment with the first shard that is idle and may; returns whether there was one."""
        for shard in sorted(self.idle_since):
            if self.queue.may_begin(shard):
                self._begin(shard, tick, record)
                return True
        return False

    def _begin(self, shard: int, tick: int, record: Round, attempts: int = 0) -> None:
        fragment, actors = self.queue.begin(shard, tick / SECOND, attempts), self.layout.of_shard(shard)
        self.usage.actor_blocked += (tick - self.idle_since.pop(shard)) * len(actors)
        self._count_begin(tick)
        startups, durations = self._drawn(fragment, tick)
        self.begun[shard], self.lasts[shard] = tick, max(map(add, startups, durations))
        self.rolled[shard] = 0
        whole = (self.layout.segments + 1) * self.passing + self.lasts[shard]
        self.dies.pop(shard, None)
        if self.failure > 0.0:
            fails, fraction = next(self.streams.failures), next(self.streams.failures)
            if fails < self.failure:
                self.dies[shard] = round(whole * Fraction(fraction))
        self.startups[shard] = startups
        self._segment(fragment, tick, record)

    def _count_begin(self, tick: int) -> None:
        """Count a fragment that is begun, and end the run if batches never come."""
        self.since_batch += 1
        self.at_once = self.at_once + 1 if tick == self.begun_at else 1
        self.begun_at = tick
        shards = self.layout.shards
        if self.since_batch > MOST_BEGUN * shards or self.at_once > MOST_AT_ONCE * shards + self.queue.capacity:
            raise RunError(
                f"Actors have begun {self.since_batch} fragments while no batch was completed, until "
                f"{tick / SECOND:g} simulated seconds: delays.actor is too short beside delays.learner, or learners "
                f"or system.data_admission={self.queue.system.data_admission} wait for ever."
            )

    def _drawn(self, fragment: Fragment, tick: int) -> tuple[list[int], list[int]]:
        """Ticks that the actors of a fragment take to start, and then to roll it."""
        actors = self.layout.of_shard(fragment.shard)
        return [self.containers.startup(actor, tick) for actor in actors], self._durations(fragment)

    def _durations(self, fragment: Fragment) -> list[int]:
        """Ticks that the actors of a fragment take to roll all of its steps."""
        actors = self.layout.of_shard(fragment.shard)
        return self.streams.durations.at(fragment.number * self.layout.actors + actors.start, len(actors))

    def segments_left(self, shard: int) -> int:
        """Segments that a shard's fragment has after the one under way, unless its episodes end before."""
        return self.layout.segments - len(self.queue.rolling[shard].versions)

    def measured(self, shard: int, steps: int, ended: bool, tick: int) -> None:
        """Schedule the end of a shard's segment, whose length is known now.

        Args:
          shard: number of the shard.
          steps: steps of the segment.
          ended: whether every environment of the shard has ended an episode, so that the fragment ends.
          tick: tick of the segment's begin, which is now.
        """
        fragment = self.queue.rolling[shard]
        self.rolled[shard] += steps
        segments = len(fragment.versions)
        last = ended or self.segments_left(shard) == 0
        due = (segments + last) * self.passing + self._lasted(fragment)
        event: Event = FragmentEnded(shard) if last else SegmentBegun(shard)
        if shard in self.dies and self.dies[shard] <= due:
            due, event = self.dies[shard], ActorDied(shard)
        self.schedule(self.begun[shard] + due - tick, event)

    def _lasted(self, fragment: Fragment) -> int:
        """Ticks until a fragment's slowest actor has made its steps so far; a start-up takes as long for few steps."""
        shard, steps = fragment.shard, self.layout.steps
        if not self.layout.follows:
            return self.lasts[shard] * self.rolled[shard] // steps
        durations = self._durations(fragment)
        return max(
            startup + duration * self.rolled[shard] // steps
            for startup, duration in zip(self.startups[shard], durations, strict=True)
        )

    def _segment(self, fragment: Fragment, tick: int, record: Round) -> None:
        """Record the segment that has begun, unless its attempt will die, so that its data never exist."""
        shard, doomed = fragment.shard, fragment.shard in self.dies
        if not doomed:
            part = len(fragment.versions) - 1
            record.sequence.append(Segment(shard, fragment.number, part, fragment.row, fragment.versions[-1]))
        if self.layout.follows and not doomed:
            self.unknown.append(shard)
        else:
            self.measured(shard, self.layout.steps // self.layout.segments, False, tick)

    def handle(self, event: SegmentBegun | FragmentEnded | ActorDied, tick: int, record: Round) -> None:
        """Process an event of an actor."""
        shard, queue = event.shard, self.queue
        if isinstance(event, SegmentBegun):
            queue.fetch(shard)
            self._segment(queue.rolling[shard], tick, record)
            return
        actors = self.layout.of_shard(shard)
        for actor in actors:
            self.containers.release(actor, tick)
        self.idle_since[shard] = tick
        if isinstance(event, ActorDied):
            self.usage.actor_failed += len(actors) * (tick - self.begun[shard])
            dead = queue.on_death(shard)
            dead.end = tick / SECOND
            record.dead_attempts.append(dead)
            self._begin(shard, tick, record, dead.attempts + 1)
            return
        fragment = queue.rolling[shard]
        passing = len(actors) * (len(fragment.versions) + 1) * self.passing
        rolled = sum(self._durations(fragment)) * self.rolled[shard] // self.layout.steps
        busy = rolled + passing
        self.usage.actor_busy += busy
        self.usage.actor_startup += sum(self.startups[shard])
        self.usage.actor_invocations += len(actors)
        queue.on_fragment(shard, tick / SECOND, busy / SECOND)

    def evict(self, tick: int, record: Round) -> bool:
        """Drop what data admission evicts; returns whether there was anything."""
        evicted = self.queue.evict(tick / SECOND)
        record.dropped_fragments += evicted
        record.sequence += evicted
        self.usage.actor_dropped += sum(round(fragment.seconds * SECOND) for fragment in evicted)
        return bool(evicted)

    def form(self, tick: int, record: Round) -> Batch | None:
        """Form the next batch if possible."""
        batch = self.queue.form(tick / SECOND)
        if batch is not None:
            self.batches[batch.index] = batch
            record.batches.append(batch)
            record.sequence.append(batch)
        return batch

    def end_round(self, record: Round) -> None:
        """Complete the record of a round, whose batch is complete."""
        self.since_batch = self.at_once = 0
        complete_record(record, self.batches, self.queue, self.layout.actors)

    _SHARDS = ("idle_since", "begun", "lasts", "startups", "dies", "rolled")

    def state(self) -> dict[str, Any]:
        """State without the containers and the random numbers, as JSON data."""
        return {
            **{name: [list(item) for item in getattr(self, name).items()] for name in self._SHARDS},
            "since_batch": self.since_batch,
            "next_update": self.next_update and as_data(self.next_update),
            "queue": self.queue.state(),
            "batches": [as_data(batch) for batch in self.batches.values()],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state()` returned (it may have passed through JSON)."""
        for name in self._SHARDS:
            setattr(self, name, {shard: value for shard, value in state[name]})
        self.since_batch = state["since_batch"]
        update = state.get("next_update")  # states of earlier versions lack it
        self.next_update = record_of(NextUpdate, update) if update else None
        self.queue.restore(state["queue"])
        self.batches = {one["index"]: record_of(Batch, one) for one in state["batches"]}
