"""Slowdown of concurrent computations: learners that share a GPU, learners and the parameter function.

A learner function counts while it computes, but not while its container starts or a policy or gradient is passed.
Times are in ticks (`stellaris_jax.timeline.ticks`), slowdowns in billionths (`ALONE` = 1). At every change of the
slowdown, the work done is rounded down to whole ticks, and the remaining time is rounded up.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from stellaris_jax.timeline.platform import ALONE, Placement
from stellaris_jax.timeline.ticks import ticks

PARAMETER_FUNCTION = -1
"""Number of the parameter function among the learners."""


class Computation:
    """Computation under way, with a changing slowdown.

    Args:
      since: tick of its start, or of the last change of its slowdown.
      left: ticks that its remaining work would take alone from then on.
      order: number of its end event.
      slowdown: factor on the ticks, in billionths.
    """

    __slots__ = ("left", "order", "since", "slowdown")

    def __init__(self, since: int, left: int, order: int, slowdown: int = ALONE):
        self.since, self.left, self.order, self.slowdown = since, left, order, slowdown

    def paced(self, now: int, slowdown: int) -> int:
        """Set a new slowdown at tick `now`, and return the ticks until the computation ends."""
        self.left -= (now - self.since) * ALONE // self.slowdown
        self.since, self.slowdown = now, slowdown
        return -(-self.left * slowdown // ALONE)


class Contention:
    """All computations under way, by learner.

    Args:
      placement: placement of learners on GPUs.
      interference: slowdown between learners and the parameter function, see `PlatformConfig`.
    """

    def __init__(self, placement: Placement, interference: float):
        self.placement, self.interference = placement, ticks(interference)
        self.under_way: dict[int, Computation] = {}

    def changed(self) -> list[tuple[int, Computation, int]]:
        """Triples of learner, computation and new slowdown, for computations whose slowdown has changed."""
        learners = self.under_way.keys() - {PARAMETER_FUNCTION}
        current = [(number, work, self._slowdown(number, learners)) for number, work in sorted(self.under_way.items())]
        return [(number, work, slowdown) for number, work, slowdown in current if slowdown != work.slowdown]

    def _slowdown(self, number: int, learners: Set[int]) -> int:
        if number == PARAMETER_FUNCTION:
            return ALONE + self.interference * bool(learners)
        return self.placement.slowdown(number, learners) + self.interference * (PARAMETER_FUNCTION in self.under_way)

    def state(self) -> Any:
        """State as JSON data."""
        return [[number, work.since, work.left, work.order, work.slowdown] for number, work in self.under_way.items()]

    def restore(self, state: Any) -> None:
        """Continue from what `state()` returned."""
        self.under_way = {number: Computation(*rest) for number, *rest in state}
