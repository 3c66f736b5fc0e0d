"""The records of the literal system with independent actors (`reference_actors.py`), and what it is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Protocol

from reference import Training
from reference_admissions import Batch, Fragment
from reference_events import Log

from stellaris_jax.timeline.delays import Chance, Stream


@dataclass
class ActorLog(Log):
    """Events and meter readings. `begins` has every attempt, in order; `diary` what happens to data, in words."""

    begins: list[Fragment] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    dropped_fragments: list[tuple[int, Fragment]] = field(default_factory=list)
    diary: list[str] = field(default_factory=list)
    actor_failed: Fraction = Fraction(0)
    actor_blocked: Fraction = Fraction(0)
    actor_failures: int = 0
    actor_dropped: Fraction = Fraction(0)

    @property
    def fragments_dropped(self) -> int:
        return len(self.dropped_fragments)


def actor_failures(seed: int) -> Stream:
    """Numbers in [0, 1) that the deaths of attempts are drawn from: entity 6 of the seed."""
    stream = Stream(Chance(), seed, "failure")
    stream.key = (seed, 6)
    return stream


Lengths = Callable[[int, int, int], tuple[int, bool]]
"""Function from shard, fragment and segment to the steps of the segment until its last environment has stopped, and
whether all of them have ended an episode, so that the fragment ends."""


Rolled = Callable[[int], Fraction]
"""Function from a fragment's steps to the seconds until its slowest actor has made so many."""


class ActorTraining(Training, Protocol):
    """Interface of the computations beside the events; `reference_actor_training.ActorTraining` has it."""

    def begin(self, attempt: Fragment) -> None: ...

    def segment(self, attempt: Fragment) -> None: ...

    def end(self, attempt: Fragment) -> None: ...

    def form(self, batch: Batch) -> None: ...

    def end_round(self) -> None: ...
