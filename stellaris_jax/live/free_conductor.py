"""Conductor of a live run with independent actors: each rolls fragments at its own pace, and a round is a batch.

It drives the same `DataQueue` as the simulator, by segments that really end. Data wait in the engine's store.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from stellaris_jax.config.tree import Config
from stellaris_jax.engine.prepare import EpisodeStatistics
from stellaris_jax.engine.rollout import Normalizers
from stellaris_jax.engine.state import EngineState
from stellaris_jax.engine.store import Store, cut
from stellaris_jax.engine.wave import RoundMetrics, WaveCarry
from stellaris_jax.live.actor_inputs import Width
from stellaris_jax.live.conductor import Conductor, busy_seconds
from stellaris_jax.live.driver_steps import DriverSteps, StoredFragment
from stellaris_jax.live.free_actors import Ended, FreeShards
from stellaris_jax.live.free_hosts import HostShards
from stellaris_jax.live.hosts import EnvPosition
from stellaris_jax.live.pool import Done
from stellaris_jax.live.rolls import ActingPolicy
from stellaris_jax.timeline import Group, Round
from stellaris_jax.timeline.coordinator import Action
from stellaris_jax.timeline.data_queue import DataQueue
from stellaris_jax.timeline.data_rounds import NextUpdate, complete_record, usage_of
from stellaris_jax.timeline.record_json import as_data, record_of
from stellaris_jax.timeline.records import Batch, Fragment, Segment
from stellaris_jax.timeline.trace import Roll

NO_EPISODES: Any = EpisodeStatistics(*[np.float32(0.0)] * len(EpisodeStatistics._fields))  # type: ignore[arg-type]
REHEARSED = -1
"""Number of the batch that processes are compiled with; learners cache data by it."""


class FreeConductor(Conductor):
    """Driver of one live run with independent actors, one actor function for each shard; see `Conductor`.

    Args:
      config: configuration of the run.
      steps: computations of the driver itself.
      seed: seed of the run.
      positions: position of each shard's environments, if they are host environments.
    """

    def __init__(self, config: Config, steps: DriverSteps, seed: int, positions: list[EnvPosition] | None = None):
        super().__init__(config, steps, seed)
        self.queue = DataQueue(config.system, config.actor_shards, self.usage)
        self.batches: dict[int, Batch] = {}
        stored = steps.engine.network.stored
        self.shards = FreeShards(self._call, stored)
        if positions is not None:
            self.shards = HostShards(self._call, stored, positions, seed, self._lost)
        self._idle_since: dict[int, float] = dict.fromkeys(range(self.queue.shards), 0.0)
        self._normalises = config.env.normalize_observation
        self._acting: dict[int, Any] = {}  # normalizers of versions, as handles of the pool
        self._next_update: NextUpdate | None = None
        self._beginning = self.state()

    # A round -------------------------------------------------------------------------------------------------------

    def round(
        self, state: EngineState, index: int, width: Width, step_scale: float
    ) -> tuple[EngineState, RoundMetrics, Round]:
        """Continue until batch `index` is complete; see `Conductor.round`."""
        with self.shards.unless_it_fails():
            return self._round(state, index, width, step_scale)

    def _round(
        self, state: EngineState, index: int, width: Width, step_scale: float
    ) -> tuple[EngineState, RoundMetrics, Round]:
        self._begin_round(state, index, width, step_scale)
        if self._next_update is not None:
            self._next_update.begin(self._record)
        self._episodes = self._dropped_episodes = NO_EPISODES
        self._settle()
        while self.queue.completed <= index:
            self._happen()
            self._settle()
        self._next_update = NextUpdate.of(self._record, self.coordinator)
        self._state = self._state._replace(actor=self.shards.actor)
        state, metrics = self.steps.finish(self._state, self._wave_state, self._episodes)
        metrics = jax.device_get(metrics)
        self._trace.opened, self.shards.opened = self.shards.opened, False
        dropped: EpisodeStatistics = jax.tree.map(lambda x: np.full((1, 1), x, np.float32), self._dropped_episodes)
        complete_record(self._record, self.batches, self.queue, self.queue.shards)
        record = self._end_round()
        record.usage = usage_of(self.usage, self._next_update)
        return state, metrics._replace(dropped_episodes=dropped), record

    def _settle(self) -> None:
        """Do all that can be done now: drop and begin fragments, form batches, start learners.

        Once the round's batch is complete, an update that has begun or must be forced is left to the next round.
        """
        coordinator, queue = self.coordinator, self.queue
        while True:
            queue.clock = coordinator.clock
            while queue.completed < queue.formed and coordinator.remaining[queue.completed] == 0:
                del coordinator.remaining[queue.completed], self._fragments[queue.completed]
                queue.completed += 1
            over = queue.completed > self._record.index
            if over and coordinator.aggregating:
                return
            changed = True
            while changed:
                changed = self._evict() | self._form()
                while self._begin():
                    changed = True
            started = list(map(self._invoke, coordinator.starts()))
            # A batch without minibatches, before learning starts, is complete as soon as it is formed.
            if started or (queue.completed < queue.formed and coordinator.remaining[queue.completed] == 0):
                continue
            # No learner may take the pointers that there are, or actors can contribute nothing to the next batch.
            waiting = coordinator.running or coordinator.aggregating
            if over or waiting or not coordinator.queue or not (coordinator.pointers or queue.blocked):
                return
            if not (actions := coordinator.on_stall(self.now)):
                return
            self._carry_out(actions)

    def _stuck(self, moment: str) -> str:
        return super()._stuck(moment) if self.coordinator.has_work else self.queue.stuck(moment)

    # Actors --------------------------------------------------------------------------------------------------------

    def _begin(self) -> bool:
        """Begin a fragment with the first shard that is idle and may; returns whether there was one."""
        for shard in sorted(self._idle_since):
            if self.queue.may_begin(shard):
                self.usage.actor_blocked += self.now - self._idle_since.pop(shard)
                self._start(self.queue.begin(shard, self.now))
                return True
        return False

    def _rehearsed(self, done: Done) -> None:
        ended = self.shards.took(self._pool, done)
        if ended is not None:
            self._write(ended)

    def _start(self, fragment: Fragment, rehearsal: bool = False) -> None:
        """Start the segment of a fragment whose version was fetched last."""
        version = fragment.versions[-1]
        normalizers = self._acting[version if self._normalises else 0]
        whole = 0.0 if rehearsal else self.emulation.fragment(fragment.shard, fragment.number)
        self.shards.waits[fragment.shard] = whole / self.config.segments
        self.shards.start(self._pool, fragment, ActingPolicy(self._versions[version], normalizers), self.now, rehearsal)

    def _rolled(self, done: Done) -> None:
        ended = self.shards.took(self._pool, done)
        if ended is None:
            self.usage.actor_startup += done.elapsed
            return
        # Time between rounds, when policies are evaluated and saved, does not count.
        busy = min(busy_seconds(done, ended.replayed), max(done.seconds, self.now - ended.second))
        shard, queue = ended.segment.shard, self.queue
        self.usage.actor_busy += busy
        self.usage.actor_startup += max(0.0, self.now - ended.second - busy)
        self._trace.rolls.append(Roll(shard, self.now - busy, self.now))
        self._write(ended)
        self._record.sequence.append(ended.segment)
        fragment, queue.clock = queue.rolling[shard], self.coordinator.clock
        fragment.seconds += busy
        if len(fragment.versions) < self.config.segments:
            queue.fetch(shard)
            self._start(fragment)
            return
        self.usage.actor_invocations += 1
        self._idle_since[shard] = self.now
        queue.on_fragment(shard, self.now, fragment.seconds)

    def _write(self, ended: Ended) -> None:
        """Write a segment's data into the store."""
        _, _, part, row, _ = ended.segment
        rows, first, parts = (np.array([x], np.int32) for x in (row, part * self.spec.segment_steps, part))
        self._state = self._state._replace(store=self.steps.write(self._store, ended.rolled, rows, first, parts))

    def _lost(self, segment: Segment) -> None:
        """End the episodes in a fragment whose shard begins new ones before a segment."""
        place = (segment.row, segment.part * self.spec.segment_steps - 1)
        self._state = self._state._replace(store=cut(self._state.store, place))

    def _roll_again(self, done: Done) -> None:
        segment = self.shards.died(self._pool, done)
        self.usage.actor_failures += 1
        self.usage.actor_failed += done.elapsed
        self.queue.rolling[segment.shard].attempts += 1

    def _start_again(self, done: Done) -> None:
        self.shards.died(self._pool, done)

    # The data loader -----------------------------------------------------------------------------------------------

    @property
    def _store(self) -> Store:
        assert self._state.store is not None, "actors are not independent"
        return self._state.store

    def _evict(self) -> bool:
        """Drop what data admission evicts; returns whether there was anything."""
        evicted = self.queue.evict(self.now)
        for fragment in evicted:
            episodes = EpisodeStatistics(*np.asarray(self._store.episodes)[fragment.row])
            self._dropped_episodes = jax.tree.map(np.add, self._dropped_episodes, episodes)
            self.usage.actor_dropped += fragment.seconds
        self._record.dropped_fragments += evicted
        self._record.sequence += evicted
        return bool(evicted)

    def _form(self) -> bool:
        """Form the next batch if no minibatch waits, and a learner does; returns whether there was one."""
        coordinator = self.coordinator
        if coordinator.pointers or len(coordinator.running) >= coordinator.learners:
            return False
        batch = self.queue.form(self.now)
        if batch is None:
            return False
        self.batches[batch.index] = batch
        self._record.batches.append(batch)
        self._record.sequence.append(batch)
        self._prepare(batch.index, batch.fragments)
        batch.loaded = self.now
        layout = self.spec.minibatch_layout
        coordinator.remaining[batch.index] = layout.gradients(batch.index, layout.envs)
        coordinator.on_data(batch.index)
        return True

    def _prepare(self, index: int, fragments: Sequence[Fragment]) -> None:
        """Turn the fragments of a batch into training data for learners."""
        rows = np.array([fragment.row for fragment in fragments], np.int32)
        order = self._order(max(index, 0))
        buffer = np.int32(self.shape.fragments.slot(index))
        self._state, episodes, samples = self.steps.form(self._state, rows, buffer, order)
        self._episodes = jax.tree.map(np.add, self._episodes, jax.device_get(episodes))
        oldest = min(version for fragment in fragments for version in fragment.versions)
        self._fragments[index] = StoredFragment(self._training_data(int(buffer), samples), oldest)
        self._statistics = jax.device_get(self._state.normalizers)

    # The parameter function ----------------------------------------------------------------------------------------

    def _carry_out(self, actions: Sequence[Action]) -> None:
        super()._carry_out(actions)
        if any(isinstance(action, Group) for action in actions):
            self._forming_statistics = self._statistics

    def _publish(self, carry: WaveCarry) -> None:
        """Publish the newest version, and the statistics of observations when its group was formed."""
        super()._publish(carry)
        if not self._normalises:
            return
        version, normalizers = int(carry.version), self._forming_statistics
        numbers = (np.int32(version), np.int32(version - 1))
        store = self.steps.publish_statistics(self._store, normalizers.obs, *numbers)
        self._state = self._state._replace(store=store)
        self._acting = {one: handle for one, handle in self._acting.items() if one in self._versions}
        self._acting[version] = self._pool.put(normalizers)

    # Warm-up, saving, restoring ------------------------------------------------------------------------------------

    def warm(self, state: EngineState, width: Width) -> None:
        pool, steps = self._pool, self.steps
        self.restore(self._beginning)
        self._state, self._wave_state = steps.open(state)
        self._record, self._episodes = Round(0, 0, 0.0, width.actors), NO_EPISODES
        self._hold_newest(self._wave_state, 0)
        self._acting = {0: pool.put(jax.device_get(self._state.normalizers))}
        self.shards.open(self._state)
        fragments = [Fragment(shard, 0, 0, 0, shard, 0.0, versions=[0]) for shard in range(width.actors)]
        for fragment in fragments:
            self._start(fragment, rehearsal=True)
        self._wait_all(self._rehearsed)
        self._prepare(REHEARSED, fragments)
        self._warm_learners(REHEARSED)
        store = self._store
        if self._normalises:
            store = steps.publish_statistics(store, self._statistics.obs, np.int32(0), np.int32(0))
        state = self._state._replace(actor=self.shards.actor, store=store)
        jax.block_until_ready(steps.finish(state, self._wave_state, self._episodes))
        self._clear()
        if not self.config.platform.prewarm:
            pool.cool()

    def state(self) -> dict[str, Any]:
        """Mutable state as JSON data; segments under way begin again after a restore."""
        actors = {
            "queue": self.queue.state(),
            "batches": [as_data(batch) for batch in self.batches.values()],
            "idle_since": [list(item) for item in self._idle_since.items()],
            "next_update": self._next_update and as_data(self._next_update),
            "spent": as_data(self.usage),
        }
        return {**super().state(), "usage": as_data(usage_of(self.usage, self._next_update)), "actors": actors}

    def restore(self, state: dict[str, Any]) -> None:
        actors = state["actors"]
        super().restore({**state, "usage": actors.get("spent", state["usage"])})  # states of earlier versions lack it
        self.queue.usage = self.usage
        update = actors.get("next_update")
        self._next_update = record_of(NextUpdate, update) if update else None
        if self._next_update is not None:
            self._forming, self.coordinator.before = self._next_update
        if self.usage.actor_invocations:
            self.shards.seconds = self.usage.actor_busy / self.usage.actor_invocations / self.config.segments
        self.queue.restore(actors["queue"])
        self.batches = {one["index"]: record_of(Batch, one) for one in actors["batches"]}
        self._idle_since = {shard: second for shard, second in actors["idle_since"]}

    def _clear(self) -> None:
        super()._clear()
        self.shards.clear()
        self._acting = {}

    def _hand_out_state(self) -> None:
        """Send versions and data to processes, repeat interrupted work, and begin interrupted segments again.

        These fetch the newest version: theirs may have left the version ring.
        """
        super()._hand_out_state()
        self.shards.open(self._state)
        self._statistics = normalizers = jax.device_get(self._state.normalizers)
        ring = jax.device_get(self._store.statistics)
        acting = {version: self._normalizers(normalizers, ring, version) for version in self._versions}
        if not self._normalises:
            acting = {0: normalizers}
        self._acting = {version: self._pool.put(value) for version, value in acting.items()}
        self._forming_statistics = normalizers  # no batch is formed between an update's begin and the round's end
        for fragment in self.queue.rolling.values():
            fragment.versions[-1] = self.queue.visible()
            self._start(fragment)

    def _normalizers(self, normalizers: Normalizers, ring: Any, version: int) -> Normalizers:
        """Normalizers that a version acts with, from the statistics `[H, ...]` of the version ring."""
        slot = self.shape.ring.slot(version)
        return normalizers._replace(obs=jax.tree.map(lambda x: x[slot], ring))
