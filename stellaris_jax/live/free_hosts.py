"""Driver-side view of independent actors that hold host environments: each shard's position, and its segments.

A segment is a function of its policy, its keys and the position of the shard's environments. A new process replays all
actions since the shard's environments were opened (`stellaris_jax.live.hosts`). If they are too many, or environments
do not repeat themselves, the shard begins new episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from stellaris_jax.agent.networks.recurrent import Carry
from stellaris_jax.engine.host_rollout import pool_seed
from stellaris_jax.engine.keys import acting_key
from stellaris_jax.engine.state import EngineState
from stellaris_jax.live.free_actors import Ended, FreeShards, RolledSegment, SegmentUnderWay, last_segment
from stellaris_jax.live.hosts import EnvPosition, NotAtPosition, RequestedPosition
from stellaris_jax.live.pool import Call, Done, Pool
from stellaris_jax.live.rolls import GRACE, ActingPolicy
from stellaris_jax.timeline.records import Fragment, Segment


class RequestedShard(NamedTuple):
    """Input of an actor for a segment.

    Attributes:
      position: position of its environments.
      totals: totals of their unfinished episodes, `[n, 3]`.
      window: the last steps of targets of several steps; `None` without these.
    """

    position: RequestedPosition
    totals: np.ndarray
    window: Any = None


class HostedSegment(NamedTuple):
    """Result of an actor's function for one segment.

    Attributes:
      rolled: the segment's data.
      obs: observations before it and after it, `[n, ...]` each.
      action: actions of its steps, `[t, n, ...]`.
      carry: recurrent state after it, `[n, ...]`.
    """

    rolled: RolledSegment
    obs: tuple[np.ndarray, np.ndarray]
    action: np.ndarray
    carry: Any


class HostShards(FreeShards):
    """Shards whose environments are on the host; see `FreeShards`.

    Args:
      call: makes an invocation from kind, number and grace in seconds.
      stored: what learners get of the memory's state at a segment's start.
      positions: list of the position of each shard's environments, which is kept up to date.
      seed: seed of the run.
      on_lost: told of a segment whose fragment has begun, and before which its shard has begun new episodes.
    """

    def __init__(
        self,
        call: Callable[[str, int, float], Call],
        stored: Callable[[Carry], Carry],
        positions: list[EnvPosition],
        seed: int,
        on_lost: Callable[[Segment], None],
    ):
        super().__init__(call, stored)
        self.positions, self.seed, self._on_lost = positions, seed, on_lost

    def open(self, state: EngineState) -> None:
        super().open(state)
        self._key = np.asarray(acting_key(self.seed))
        for shard, position in enumerate(self.positions):
            if position.opened > 0 and position.fragments == 0:
                self._forget(shard)

    @contextmanager
    def unless_it_fails(self) -> Iterator[None]:
        before = [position.copy() for position in self.positions]
        try:
            yield
        except BaseException:
            self.positions[:] = before
            raise

    def start(
        self, pool: Pool, fragment: Fragment, acting: ActingPolicy, second: float, rehearsal: bool = False
    ) -> None:
        segment = last_segment(fragment)
        if not rehearsal and self.positions[segment.shard].fragments == 0:
            self._cut(segment)
        self._request(pool, segment, acting, second, rehearsal)

    def _request(
        self,
        pool: Pool,
        segment: Segment,
        acting: ActingPolicy,
        second: float,
        rehearsal: bool = False,
        again: bool = False,
    ) -> None:
        """Start a segment; `again` if the actor needs the actions that bring its environments to their position."""
        position, state = self.positions[segment.shard], self._states[segment.shard]
        totals = np.asarray(state.totals)
        envs, replays = len(totals), again or position.fragments == 0
        requested = RequestedPosition(
            pool_seed(self.seed, position.opened, 0) + segment.shard * envs,  # as in the compiled engine's shards
            envs,
            position.opened,
            position.fragments,
            position.since(0, envs) if replays else None,
            rehearsal,
            position.carry,
        )
        grace = GRACE * position.fragments * self.seconds if replays else 0.0
        envs_of_shard = RequestedShard(requested, totals, state.window)
        self._submit(pool, SegmentUnderWay(segment, second, acting, envs_of_shard, grace))

    def took(self, pool: Pool, done: Done) -> Ended | None:
        under_way, value = self._under_way.pop(done.call.stamp), done.value
        segment, second, acting, (requested, *_), _ = under_way
        position = self.positions[segment.shard]
        there = not isinstance(value, NotAtPosition)
        if there and requested.rehearsal:
            return self._ended(under_way, value.rolled, requested.carry)
        if there and position.matches(value.obs[0]):
            position.add(np.asarray(value.action), value.obs[1], value.carry)
            self._states[segment.shard], self.seconds = value.rolled.actor, done.seconds
            replayed = requested.actions is not None and requested.fragments > 0
            return self._ended(under_way, value.rolled, requested.carry, replayed)
        if there or position.actions is None:
            position.open(position.opened + 1)
            self._forget(segment.shard)
            self._cut(segment)
        self._request(pool, segment, acting, second, requested.rehearsal, again=True)
        return None

    def _cut(self, segment: Segment) -> None:
        if segment.part > 0:
            self._on_lost(segment)

    def _forget(self, shard: int) -> None:
        """Reset the totals of a shard's episodes, which are lost."""
        state = self._states[shard]
        anew = state._replace(totals=np.zeros_like(state.totals))  # type: ignore[arg-type]
        self._states[shard], self.opened = anew.with_windows_cut(), True
