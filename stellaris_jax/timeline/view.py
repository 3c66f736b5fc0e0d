"""View of the system for rules and admission policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from stellaris_jax.timeline.records import Gradient


class View(Protocol):
    """Read-only view of the current system.

    Attributes:
      learners: number of learners (n).
      clock: newest version.
      queue: gradients that wait for aggregation, oldest first.
      pointers: minibatches that wait for a learner.
      running: versions of the learners in flight, by learner.
      computing: gradients of the learners in flight, by learner; filled only if the admission policy defines `admits`.
      iterations: number of gradients that each learner has delivered.
      aggregating: whether an aggregation is under way.

    A rule can be tested without a system, on an object with the fields that it reads. Here: the end of an epoch.

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
