"""Rolling of one fragment by actors: shares under way, and results so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from stellaris_jax.engine.state import EngineState
from stellaris_jax.live.actor_inputs import Actors, RolledFragment, Width
from stellaris_jax.live.emulation import waiting
from stellaris_jax.live.hosts import NotAtPosition, Share
from stellaris_jax.live.pool import ACTOR, Call, Done, Pool

GRACE = 2.0
"""Allowed time of a replay, relative to the time that rolling the same fragments took."""


class ActingPolicy(NamedTuple):
    """Policy of a round's actors: parameters and normalizers, as handles of the pool."""

    params: Any
    normalizers: Any


class Rolling(NamedTuple):
    """Share of a fragment that is being rolled.

    Attributes:
      actor: number of the actor.
      first, end: range of its environments.
      arguments: arguments of its function.
      behind: number of fragments that its environments have to replay first.
      wait: seconds that the actor waits after it.
    """

    actor: int
    first: int
    end: int
    arguments: tuple[Any, ...]
    behind: int = 0
    wait: float = 0.0


class Rolls:
    """Shares of the current fragment.

    Args:
      actors: makes the actors' inputs, and joins their results.
      call: makes an invocation from kind, number and grace in seconds.
    """

    def __init__(self, actors: Actors, call: Callable[[str, int, float], Call]):
        self.actors, self._call = actors, call
        self.seconds = 0.0  # of the last share
        self.clear()

    def clear(self) -> None:
        """Forget all shares."""
        self._rolling: dict[int, Rolling] = {}
        self._parts: dict[int, Any] = {}

    @property
    def under_way(self) -> bool:
        """Whether shares are being rolled."""
        return bool(self._rolling)

    def begin(
        self,
        pool: Pool,
        state: EngineState,
        index: int,
        width: Width,
        acting: ActingPolicy,
        rehearsal: bool = False,
        waits: Sequence[float] = (),
    ) -> None:
        """Start all actors on their shares of a fragment.

        Args:
          pool: pool of the actors.
          state: state of the one seed before the fragment.
          index: number of the round.
          width: width of the round.
          acting: acting policy.
          rehearsal: prepare everything and discard the result.
          waits: seconds that each actor waits after its share; nobody waits by default.
        """
        self._pool, self._index, self.width, self._acting = pool, index, width, acting
        self._waits = waits or [0.0] * width.actors
        self.actors.begin(state, index, rehearsal)
        self._start_all()

    def _start_all(self) -> None:
        self._parts = {}
        for actor, (first, end) in enumerate(self.width.shares):
            self._start(actor, first, end)

    def _start(self, actor: int, first: int, end: int, again: bool = False) -> None:
        """Start an actor on a share, if its input is available."""
        actor_input = self.actors.actor_input(self._pool, first, end, again)
        if actor_input is not None:
            wait = self._waits[actor]
            share = Share(self._index, first)
            arguments = (share, actor_input.key, *self._acting, actor_input.envs, *waiting(wait))
            self._submit(Rolling(actor, first, end, arguments, actor_input.behind, wait))

    def _submit(self, rolling: Rolling) -> None:
        call = self._call(ACTOR, rolling.actor, GRACE * rolling.behind * self.seconds + rolling.wait)
        self._rolling[call.stamp] = rolling
        self._pool.submit(call, *rolling.arguments)

    def died(self, call: Call) -> None:
        """Start a dead actor's share again."""
        self._submit(self._rolling.pop(call.stamp))

    def took(self, done: Done) -> Rolling | None:
        """Accept an actor's result; returns its share.

        Returns `None` if the actor's environments were not in position; the actor is then called again with the actions
        to replay.
        """
        rolling = self._rolling.pop(done.call.stamp)
        if isinstance(done.value, NotAtPosition):
            self._start(rolling.actor, rolling.first, rolling.end, again=True)
            return None
        self._parts[rolling.first] = done.value
        return rolling

    def assembled(self) -> RolledFragment | None:
        """Join the shares to a fragment, once none is under way.

        Returns `None` if environments could not continue; all shares are then started again.
        """
        rolled = self.actors.assembled([self._parts[first] for first in sorted(self._parts)], self.width)
        self._parts = {}
        if rolled is None:
            self.actors.begin_anew()
            self._start_all()
        return rolled
