"""Measures of runs on token tasks, in shares of right completions and simulated seconds."""

from __future__ import annotations

import math
from collections.abc import Sequence

from studies.choices import Measure
from studies.outcomes import Outcome

MARGIN = 0.05
"""Difference of areas, in shares of right completions, below which two methods count as equal; fixed beforehand."""
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


def seconds_to(share: float) -> Measure:
    """Simulated seconds to the first evaluation with such a share of right completions; NaN if there is none."""

    def measure(run: Outcome) -> float:
        reached = (second for value, second in zip(run.returns, run.seconds, strict=True) if value >= share)
        return next(reached, math.nan)

    return measure
