"""Driver-side view of independent actors: each shard's environments, and the segment that it rolls.

A segment is a pure function of its policy, its environments and its keys. So an actor that dies begins its segment
again with the same version, and the result is the same; earlier segments of the fragment are the driver's already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import numpy as np

from stellaris_jax.agent.networks.recurrent import Carry
from stellaris_jax.engine.prepare import Collected
from stellaris_jax.engine.rollout import ActorState
from stellaris_jax.engine.state import EngineState
from stellaris_jax.engine.store import Rolled
from stellaris_jax.live.emulation import waiting
from stellaris_jax.live.pool import ACTOR, Call, Done, Pool
from stellaris_jax.live.rolls import ActingPolicy
from stellaris_jax.timeline.records import Fragment, Segment


class RolledSegment(NamedTuple):
    """Result of an actor's function for one segment.

    Attributes:
      actor: state of the shard's n environments after it, `[n, ...]`.
      data: data `[t, n, ...]` of its t steps.
      episodes: `EpisodeStatistics` of the episodes that ended, `[3]`.
    """

    actor: ActorState
    data: Collected
    episodes: Any


class SegmentUnderWay(NamedTuple):
    """Segment that an actor rolls.

    Attributes:
      segment: the segment.
      second: second of training at which it was begun.
      acting: policy that acts.
      envs: state of its environments, as a handle of the pool, or what restores it.
      grace: seconds that it may take longer than others.
    """

    segment: Segment
    second: float
    acting: ActingPolicy
    envs: Any
    grace: float = 0.0


class Ended(NamedTuple):
    """Segment that an actor has rolled.

    Attributes:
      segment: the segment.
      second: second of training at which it was begun.
      rolled: its data, with an axis `[1]` of shards.
      replayed: whether its environments were brought to their position before.
    """

    segment: Segment
    second: float
    rolled: Rolled
    replayed: bool = False


class FreeShards:
    """Shards of independent actors: the states of their environments, and their segments under way.

    Args:
      call: makes an invocation from kind, number and grace in seconds.
      stored: what learners get of the memory's state at a segment's start.

    Attributes:
      opened: whether environments have begun new episodes in this round, because they were lost.
      seconds: seconds of a segment; they say how long a replay may take.
      waits: emulated seconds that each shard's actor waits after its segment.
    """

    def __init__(self, call: Callable[[str, int, float], Call], stored: Callable[[Carry], Carry]):
        self._call, self._stored = call, stored
        self.opened, self.seconds = False, 0.0
        self.waits: dict[int, float] = {}
        self.clear()

    def clear(self) -> None:
        """Forget all environments and segments."""
        self._states: list[ActorState] = []
        self._under_way: dict[int, SegmentUnderWay] = {}

    def open(self, state: EngineState) -> None:
        """Take over the environments `[A, n, ...]` of an engine's state."""
        actor = jax.device_get(state.actor)
        self._key = np.asarray(jax.random.key_data(state.key))
        self._states = [jax.tree.map(lambda x, s=s: x[s], actor) for s in range(len(actor.totals))]

    @contextmanager
    def unless_it_fails(self) -> Iterator[None]:
        """Context of a round: if it fails, shards stand where they stood before."""
        yield

    @property
    def actor(self) -> ActorState:
        """States of all environments, `[A, n, ...]`; segments under way have not changed them yet."""
        stacked: ActorState = jax.tree.map(lambda *x: np.stack(x), *self._states)
        return stacked

    def start(
        self, pool: Pool, fragment: Fragment, acting: ActingPolicy, second: float, rehearsal: bool = False
    ) -> None:
        """Start the last segment of a fragment that has been begun.

        Args:
          pool: pool of the actors.
          fragment: the fragment.
          acting: policy of the segment's version.
          second: second of training.
          rehearsal: prepare everything and discard the result.
        """
        segment = last_segment(fragment)
        self._submit(pool, SegmentUnderWay(segment, second, acting, pool.put(self._states[segment.shard])))

    def _submit(self, pool: Pool, under_way: SegmentUnderWay) -> None:
        wait = self.waits.get(under_way.segment.shard, 0.0)
        call = self._call(ACTOR, under_way.segment.shard, under_way.grace + wait)
        self._under_way[call.stamp] = under_way
        pool.submit(call, under_way.segment, self._key, *under_way.acting, under_way.envs, *waiting(wait))

    def died(self, pool: Pool, done: Done) -> Segment:
        """Start a dead actor's segment again; returns it."""
        under_way = self._under_way.pop(done.call.stamp)
        self._submit(pool, under_way)
        return under_way.segment

    def took(self, pool: Pool, done: Done) -> Ended | None:
        """Accept an actor's result, and move its environments on.

        Returns `None` if the environments were not in position; the segment is then started again.
        """
        under_way = self._under_way.pop(done.call.stamp)
        shard = under_way.segment.shard
        before, self._states[shard] = self._states[shard], done.value.actor
        return self._ended(under_way, done.value, self._stored(before.carry))

    def _ended(self, under_way: SegmentUnderWay, result: RolledSegment, carry: Carry, replayed: bool = False) -> Ended:
        """Segment with its data; `carry` is the recurrent state at its first observations, `[n, ...]`."""
        segment, second, *_ = under_way
        of_one = (result.data, carry, np.int32(segment.version), result.episodes)
        return Ended(segment, second, Rolled(*jax.tree.map(lambda x: x[None], of_one)), replayed)


def last_segment(fragment: Fragment) -> Segment:
    """Last segment of a fragment that has been begun."""
    return Segment(fragment.shard, fragment.number, len(fragment.versions) - 1, fragment.row, fragment.versions[-1])
