"""What rules and admission see of the system."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from stellaris_jax.timeline.records import Gradient


class View(Protocol):
    """The system as it is now, to be read only.

    learners: how many may be in flight (n). clock: the newest version. queue: gradients that wait, oldest first.
    pointers: minibatches that wait for a learner. running: versions of the learners in flight, by learner. iterations:
    gradients that each learner has delivered. aggregating: an aggregation is under way.
    """

    @property
    def learners(self) -> int: ...
    @property
    def clock(self) -> int: ...
    @property
    def queue(self) -> Sequence[Gradient]: ...
    @property
    def pointers(self) -> Sequence[tuple[int, int]]: ...
    @property
    def running(self) -> Mapping[int, int]: ...
    @property
    def iterations(self) -> Sequence[int]: ...
    @property
    def aggregating(self) -> bool: ...
