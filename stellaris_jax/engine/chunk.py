"""Chunk of rounds that a trainer executes at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from stellaris_jax.timeline import Plan, Round


@dataclass(frozen=True)
class Chunk:
    """Chunk of rounds, for `S` seeds and `R` rounds.

    Attributes:
      begin: number of rounds before the chunk.
      rounds: `[R][S]`, rounds as the timelines report them.
      factors: `[R]`, factors on the learning rate.
      envs: `[S]`, participating environments, the same in all rounds.
      computed: `[R]`, gradients that the engine computes, padding included.
      timelines: `[S]`, timeline states after the last round.
      plans: plans for the engine, one for each block of seeds that runs side by side; none for a live round.
      widths: number of environments that each plan is compiled for.
      collect_occupancy: `[R]`, share of the segments computed for independent actors that they asked for.
    """

    begin: int
    rounds: list[list[Round]]
    factors: list[float]
    envs: list[int]
    computed: list[int]
    timelines: list[dict[str, Any]]
    plans: list[Plan] = field(default_factory=list)
    widths: list[int] = field(default_factory=list)
    collect_occupancy: list[float] = field(default_factory=list)

    @property
    def end(self) -> int:
        """Number of rounds once the chunk is done."""
        return self.begin + len(self.rounds)


class Following(NamedTuple):
    """Next round after a chunk, as far as it is known before the chunk has been trained.

    Attributes:
      actors: `[S]`, participating actors.
      envs: `[S]`, their environments; `None` if there may be no such round.
    """

    actors: list[int]
    envs: list[int] | None
