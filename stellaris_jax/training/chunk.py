"""What a trainer executes at once: a few planned rounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from stellaris_jax.timeline import Plan, Round


@dataclass(frozen=True)
class Chunk:
    """Planned rounds.

    begin: rounds before them. plans: what the engine runs, one for every block of seeds that it runs side by side.
    widths: environments that each of them is compiled for. envs: `[S]`, that take part, the same ones in all rounds.
    rounds: `[R][S]`, what the timelines say. computed: `[R]`, gradients that the engine computes, empty places
    included. timelines: `[S]`, their states after the last round.
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
        """Rounds there have been after them."""
        return self.begin + len(self.rounds)


class Following(NamedTuple):
    """The round after a chunk, as far as it is known before that one has taught anything.

    actors: `[S]`, that take part. envs: `[S]`, their environments; `None` if there may be no such round.
    """

    actors: list[int]
    envs: list[int] | None
