"""One fragment at a time, rolled by actors: who has which share of it, and what they have brought."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from stellaris_jax.engine.state import EngineState
from stellaris_jax.live.actors import Actors, Joined, Width
from stellaris_jax.live.functions import Share
from stellaris_jax.live.hosts import NotAtPosition
from stellaris_jax.live.pool import ACTOR, Call, Done, Pool

GRACE = 2.0
"""Times as long as fragments took to be rolled that stepping through their actions may take."""


class Rolling(NamedTuple):
    """A share of a fragment that is being rolled. actor: which one. first, end: its environments. arguments: what it
    was handed. behind: fragments that its environments have to be stepped through first."""

    actor: int
    first: int
    end: int
    arguments: tuple[Any, ...]
    behind: int = 0


class Rolls:
    """What actors are at.

    Args:
      actors: what they are handed, and what is made of what they return.
      call: makes an invocation of so many seconds' grace.
    """

    def __init__(self, actors: Actors, call: Callable[[str, int, float], Call]):
        self.actors, self._call = actors, call
        self.seconds = 0.0  # that a share has taken
        self.clear()

    def clear(self) -> None:
        """Nothing is under way."""
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
        acting: tuple[Any, Any],
        rehearsal: bool = False,
    ) -> None:
        """Have all actors roll their shares of a fragment.

        Args:
          pool: where they are.
          state: of the one seed, before the fragment.
          index: the round.
          width: how wide it is.
          acting: what acts, parameters and normalisers, as the pool has them.
          rehearsal: all is made ready, and nothing comes of it.
        """
        self._pool, self._index, self.width, self._acting = pool, index, width, acting
        self.actors.begin(state, index, rehearsal)
        self._share_out()

    def _share_out(self) -> None:
        self._parts = {}
        for actor, (first, end) in enumerate(self.width.shares):
            self._hand_over(actor, first, end)

    def _hand_over(self, actor: int, first: int, end: int, again: bool = False) -> None:
        """Have an actor roll a share, if it can be handed what it takes."""
        handed = self.actors.handed(self._pool, first, end, again)
        if handed is not None:
            arguments = (Share(self._index, first), handed.key, *self._acting, handed.envs)
            self._submit(Rolling(actor, first, end, arguments, handed.behind))

    def _submit(self, rolling: Rolling) -> None:
        call = self._call(ACTOR, rolling.actor, GRACE * rolling.behind * self.seconds)
        self._rolling[call.stamp] = rolling
        self._pool.submit(call, *rolling.arguments)

    def died(self, call: Call) -> None:
        """An actor has died, and its share is to be rolled again."""
        self._submit(self._rolling.pop(call.stamp))

    def took(self, done: Done) -> Rolling | None:
        """The share that an actor has brought; `None` of one whose environments stand elsewhere, which has been told
        how to get there."""
        rolling = self._rolling.pop(done.call.stamp)
        if isinstance(done.value, NotAtPosition):
            self._hand_over(rolling.actor, rolling.first, rolling.end, again=True)
            return None
        self._parts[rolling.first] = done.value
        return rolling

    def joined(self) -> Joined | None:
        """The fragment, once no share is under way; `None` if all of them are again, because environments cannot go on
        from where they stood."""
        joined = self.actors.joined([self._parts[first] for first in sorted(self._parts)], self.width)
        self._parts = {}
        if joined is None:
            self.actors.begin_anew()
            self._share_out()
        return joined
