"""Emulated durations: learners and actors of a live run also wait for the seconds that the simulator would draw.

The wait follows the computation, in the function that computes, so that it occupies the learner or actor in any pool.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from stellaris_jax.config.tree import Config
from stellaris_jax.timeline.delays import TickStream, stream_of
from stellaris_jax.timeline.free_actors import ActorLayout
from stellaris_jax.timeline.ticks import SECOND


class Wait(NamedTuple):
    """Last argument of an invocation whose function waits.

    Attributes:
      seconds: seconds to wait after the computation.
    """

    seconds: float


def waiting(seconds: float) -> tuple[Wait, ...]:
    """Further arguments of an invocation whose function waits; none for 0 seconds."""
    return (Wait(seconds),) if seconds else ()


def without_wait(arguments: tuple[Any, ...]) -> tuple[tuple[Any, ...], float]:
    """Arguments of a function, and the seconds that it waits afterwards."""
    if arguments and isinstance(arguments[-1], Wait):
        return arguments[:-1], arguments[-1].seconds
    return arguments, 0.0


class Emulation:
    """Seconds that the simulator draws for the learners and actors of a configuration; 0 without `live.emulate`.

    Args:
      config: configuration of the run, as it is executed.
      seed: seed of the run.
    """

    def __init__(self, config: Config, seed: int):
        self.active = config.live.emulate
        self._layout = ActorLayout.of(config)
        self._streams: dict[str, TickStream] = {}
        if self.active:
            self._streams = {entity: stream_of(config.delays, entity, seed) for entity in ("learner", "actor")}

    def learner(self, number: int) -> float:
        """Seconds of an invocation of learners.

        Args:
          number: invocations of all learners that began before.
        """
        return self._longest("learner", number, 1)

    def share(self, number: int) -> float:
        """Seconds of an actor's share of a fragment.

        Args:
          number: shares of earlier fragments, and of earlier actors of this one.
        """
        return self._longest("actor", number, 1)

    def fragment(self, shard: int, number: int) -> float:
        """Seconds of a whole fragment of independent actors, by its slowest actor.

        Args:
          shard: number of the shard.
          number: fragments of this shard that began before.
        """
        assert self._layout is not None, "actors are not independent"
        actors = self._layout.of_shard(shard)
        return self._longest("actor", number * self._layout.actors + actors.start, len(actors))

    def _longest(self, entity: str, first: int, count: int) -> float:
        return max(self._streams[entity].at(first, count)) / SECOND if self.active else 0.0
