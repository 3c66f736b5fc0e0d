"""What rules and admission see of the system."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from stellaris_jax.timeline.records import Gradient


class View(Protocol):
    """The system as it is now, to be read only.

    learners: how many may be in flight (n). clock: the newest version. queue: gradients that wait, oldest first.
    pointers: minibatches that wait for a learner. running: versions of the learners in flight, by learner; computing:
    their gradients, for admission policies that have an `admits` of their own. iterations: gradients that each learner
    has delivered. aggregating: an aggregation is under way.

    A rule can be asked without a system, by what it looks at: here about the end of an epoch.

    >>> from types import SimpleNamespace
    >>> from stellaris_jax.timeline.rules import AllReduce
    >>> for pointers, running in ([(0, 7)], {}), ([], {3: 12}), ([], {}):
    ...     AllReduce().ready([0, 0], SimpleNamespace(learners=4, pointers=pointers, running=running))
    False
    False
    True
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
    def computing(self) -> Mapping[int, Gradient]: ...
    @property
    def iterations(self) -> Sequence[int]: ...
    @property
    def aggregating(self) -> bool: ...
