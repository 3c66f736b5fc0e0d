"""What a trainer executes at once: a few planned rounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from stellaris_jax.timeline import Plan, Round


@dataclass(frozen=True)
class Chunk:
    """Planned rounds.

    begin: rounds before them. plan: what the engine runs. width: environments it is compiled for. rounds: `[R][S]`,
    what the timelines say. computed: `[R]`, gradients that the engine computes per seed, empty places included.
    timelines: `[S]`, their states after the last round.
    """

    begin: int
    plan: Plan
    width: int
    rounds: list[list[Round]]
    computed: list[int]
    timelines: list[dict[str, Any]]

    @property
    def end(self) -> int:
        """Rounds there have been after them."""
        return self.begin + len(self.rounds)

    @property
    def envs(self) -> list[int]:
        """Environments `[S]` that take part: the same ones in all rounds."""
        return [int(n) for n in self.plan.envs[0]]


class Following(NamedTuple):
    """The round after a chunk, as far as it is known before that one has taught anything.

    actors: `[S]`, that take part. envs: `[S]`, their environments; `None` if there may be no such round.
    """

    actors: list[int]
    envs: list[int] | None
