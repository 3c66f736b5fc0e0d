"""Computations that slow each other down: learners that share a GPU, learners and the parameter function."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from stellaris_jax.timeline.platform import Placement

PARAMETER_FUNCTION = -1
"""What it is called among the learners, which have numbers."""


class Computation:
    """One that is under way, and is slowed down by ever changing company.

    Args:
      since: second in which it begins.
      left: seconds that it takes alone from then on.
      order: of the event that is its end.
      slowdown: factor on the seconds.
    """

    __slots__ = ("left", "order", "since", "slowdown")

    def __init__(self, since: float, left: float, order: int, slowdown: float = 1.0):
        self.since, self.left, self.order, self.slowdown = since, left, order, slowdown

    def paced(self, now: float, slowdown: float) -> float:
        """Seconds from now on until it ends, slowed down by so much from now on."""
        if now > self.since:
            self.left = max(self.left - (now - self.since) / self.slowdown, 0.0)
            self.since = now
        self.slowdown = slowdown
        return self.since - now + self.left * slowdown


class Company:
    """All computations that are under way, by learner.

    Args:
      placement: which learners share a GPU.
      interference: of learners and the parameter function, see `PlatformConfig`.
    """

    def __init__(self, placement: Placement, interference: float):
        self.placement, self.interference = placement, interference
        self.under_way: dict[int, Computation] = {}

    def changed(self) -> list[tuple[int, Computation, float]]:
        """Those that are slowed down by more or by less than so far, in order, and by how much from now on."""
        learners = self.under_way.keys() - {PARAMETER_FUNCTION}
        found = [(one, work, self._slowdown(one, learners)) for one, work in sorted(self.under_way.items())]
        return [(one, work, slowdown) for one, work, slowdown in found if slowdown != work.slowdown]

    def _slowdown(self, one: int, learners: Set[int]) -> float:
        if one == PARAMETER_FUNCTION:
            return 1.0 + self.interference * bool(learners)
        return self.placement.slowdown(one, learners) + self.interference * (PARAMETER_FUNCTION in self.under_way)

    def state(self) -> Any:
        """All of it as JSON data."""
        return [[one, work.since, work.left, work.order, work.slowdown] for one, work in self.under_way.items()]

    def restore(self, state: Any) -> None:
        """Continue from what `state()` returned."""
        self.under_way = {one: Computation(*rest) for one, *rest in state}
