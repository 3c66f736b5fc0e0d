"""Chunk of planned rounds that a trainer executes at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from stellaris_jax.timeline import Plan, Round


@dataclass(frozen=True)
class Chunk:
    """Chunk of planned rounds, for `S` seeds and `R` rounds.

    Attributes:
      begin: number of rounds before the chunk.
      plans: plans for the engine, one for each block of seeds that runs side by side.
      widths: number of environments that each plan is compiled for.
      envs: `[S]`, participating environments, the same in all rounds.
      rounds: `[R][S]`, rounds as the timelines report them.
      computed: `[R]`, gradients that the engine computes, padding included.
      timelines: `[S]`, timeline states after the last round.
    """

    begin: int
    plans: list[Plan]
    widths: list[int]
    envs: list[int]
    rounds: list[list[Round]]
    computed: list[int]
    timelines: list[dict[str, Any]]

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
