"""Computations that slow each other down: learners that share a GPU, learners and the parameter function.

A learner function counts while it computes: not while its container starts up, and not while a policy or gradient is
passed. Times are in ticks (`stellaris_jax.timeline.ticks`), slowdowns in billionths (`ALONE` = 1). At every change of
company the work done is rounded down to whole ticks, and the time to the end is rounded up.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from stellaris_jax.timeline.platform import ALONE, Placement
from stellaris_jax.timeline.ticks import ticks

PARAMETER_FUNCTION = -1
"""Number of the parameter function among the learners."""


class Computation:
    """A computation under way, in changing company.

    Args:
      since: tick of its beginning, or of the last change of its slowdown.
      left: ticks that the rest of it takes alone from then on.
      order: number of the event that is its end.
      slowdown: factor on the ticks, in billionths.
    """

    __slots__ = ("left", "order", "since", "slowdown")

    def __init__(self, since: int, left: int, order: int, slowdown: int = ALONE):
        self.since, self.left, self.order, self.slowdown = since, left, order, slowdown

    def paced(self, now: int, slowdown: int) -> int:
        """Ticks from `now` until it ends, with another slowdown from now on."""
        self.left -= (now - self.since) * ALONE // self.slowdown
        self.since, self.slowdown = now, slowdown
        return -(-self.left * slowdown // ALONE)


class Company:
    """All computations under way, by learner.

    Args:
      placement: which learners share a GPU.
      interference: of learners and the parameter function, see `PlatformConfig`.
    """

    def __init__(self, placement: Placement, interference: float):
        self.placement, self.interference = placement, ticks(interference)
        self.under_way: dict[int, Computation] = {}

    def changed(self) -> list[tuple[int, Computation, int]]:
        """Computations whose slowdown has changed, by number, and their slowdown from now on."""
        learners = self.under_way.keys() - {PARAMETER_FUNCTION}
        found = [(one, work, self._slowdown(one, learners)) for one, work in sorted(self.under_way.items())]
        return [(one, work, slowdown) for one, work, slowdown in found if slowdown != work.slowdown]

    def _slowdown(self, one: int, learners: Set[int]) -> int:
        if one == PARAMETER_FUNCTION:
            return ALONE + self.interference * bool(learners)
        return self.placement.slowdown(one, learners) + self.interference * (PARAMETER_FUNCTION in self.under_way)

    def state(self) -> Any:
        """All of it as JSON data."""
        return [[one, work.since, work.left, work.order, work.slowdown] for one, work in self.under_way.items()]

    def restore(self, state: Any) -> None:
        """Continue from what `state()` returned."""
        self.under_way = {one: Computation(*rest) for one, *rest in state}
