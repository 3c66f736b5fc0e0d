"""Measures of runs on token tasks, in shares of right completions and simulated seconds."""

from __future__ import annotations

import math
from collections.abc import Sequence

from studies.outcomes import Outcome

MARGIN = 0.05
"""Difference of areas, in shares of right completions, below which two methods count as equal; fixed beforehand."""
GOALS = (0.75, 0.9)
"""Shares of right completions that updates and seconds are counted to."""
COLLAPSED = 0.5
"""Share of the best evaluation that a collapsed run ends below."""


def fall(run: Outcome) -> float:
    """Loss from the best evaluation to the end, in shares of right completions."""
    return max(run.returns) - run.final


def collapses(run: Outcome) -> bool:
    """Whether a run ends below `COLLAPSED` of its best evaluation."""
    return run.final < COLLAPSED * max(run.returns)


def collapsed(runs: Sequence[Outcome]) -> int:
    """Number of runs that collapse."""
    return sum(map(collapses, runs))


def reached(run: Outcome, share: float) -> int | None:
    """Place of the first evaluation with such a share of right completions, from the start on; None without one."""
    return next((place for place, value in enumerate(run.returns) if value >= share), None)


def seconds_to(run: Outcome, share: float) -> float:
    """Simulated seconds to the first evaluation with such a share of right completions; infinite if there is none."""
    place = reached(run, share)
    return math.inf if place is None else run.seconds[place]


def updates_to(run: Outcome, share: float) -> float:
    """Updates to the first evaluation with such a share of right completions; infinite if there is none."""
    place = reached(run, share)
    return math.inf if place is None else run.rounds[place]
