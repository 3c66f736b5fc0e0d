"""Driver-side view of independent actors: each shard's environments, and the segment that it rolls.

A segment is a pure function of its policy, its environments and its keys. So an actor that dies begins its segment
again with the same version, and the result is the same; earlier segments of the fragment are the driver's already.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

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
      arguments: arguments of the actor's function.
      wait: seconds that the actor waits after it.
    """

    segment: Segment
    second: float
    arguments: tuple[Any, ...]
    wait: float


class Ended(NamedTuple):
    """Segment that an actor has rolled.

    Attributes:
      segment: the segment.
      second: second of training at which it was begun.
      rolled: its data, with an axis `[1]` of shards.
    """

    segment: Segment
    second: float
    rolled: Rolled


class FreeShards:
    """Shards of independent actors: the states of their environments, and their segments under way.

    Args:
      call: makes an invocation from kind, number and grace in seconds.
    """

    def __init__(self, call: Callable[[str, int, float], Call]):
        self._call = call
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

    @property
    def actor(self) -> ActorState:
        """States of all environments, `[A, n, ...]`; segments under way have not changed them yet."""
        stacked: ActorState = jax.tree.map(lambda *x: np.stack(x), *self._states)
        return stacked

    def start(self, pool: Pool, fragment: Fragment, acting: ActingPolicy, second: float, wait: float) -> None:
        """Start the last segment of a fragment that has been begun.

        Args:
          pool: pool of the actors.
          fragment: the fragment.
          acting: policy of the segment's version.
          second: second of training.
          wait: seconds that the actor waits after the segment.
        """
        shard, part = fragment.shard, len(fragment.versions) - 1
        segment = Segment(shard, fragment.number, part, fragment.row, fragment.versions[-1])
        arguments = (segment, self._key, *acting, pool.put(self._states[shard]), *waiting(wait))
        self._submit(pool, SegmentUnderWay(segment, second, arguments, wait))

    def _submit(self, pool: Pool, under_way: SegmentUnderWay) -> None:
        call = self._call(ACTOR, under_way.segment.shard, under_way.wait)
        self._under_way[call.stamp] = under_way
        pool.submit(call, *under_way.arguments)

    def died(self, pool: Pool, done: Done) -> Segment:
        """Start a dead actor's segment again; returns it."""
        under_way = self._under_way.pop(done.call.stamp)
        self._submit(pool, under_way)
        return under_way.segment

    def took(self, done: Done) -> Ended:
        """Accept an actor's result, and move its environments on."""
        segment, second, *_ = self._under_way.pop(done.call.stamp)
        result: RolledSegment = done.value
        before, self._states[segment.shard] = self._states[segment.shard], result.actor
        of_one = (result.data, before.carry, np.int32(segment.version), result.episodes)
        return Ended(segment, second, Rolled(*jax.tree.map(lambda x: x[None], of_one)))
