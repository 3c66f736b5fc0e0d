"""Simulated time in whole nanoseconds (ticks), so that sums are exact and ties stay ties throughout a run.

Every duration is rounded to ticks once, when it is drawn or read from a configuration. Results of the timeline are in
seconds again: `ticks / SECOND`, correctly rounded.
"""

from __future__ import annotations

import math

import numpy as np

SECOND = 10**9
"""Ticks of a second."""
LONGEST = 9e9
"""Largest duration in seconds, approximately, whose ticks fit into an int64."""


def ticks(seconds: float) -> int:
    """Ticks of a duration: `seconds * 1e9` in float64, rounded to the nearest integer, halves to the even one.

    >>> ticks(0.3) == 6 * ticks(0.05)
    True

    Args:
      seconds: finite and at least 0.
    """
    nanoseconds = seconds * 1e9
    return round(nanoseconds) if math.isfinite(nanoseconds) else round(seconds) * SECOND


def ticks_of(seconds: np.ndarray) -> list[int]:
    """Ticks of many durations `[n]`; the same as `ticks` for each, but faster."""
    if seconds.max(initial=0.0) > LONGEST:
        return [*map(ticks, seconds.tolist())]
    whole: list[int] = np.rint(seconds * 1e9).astype(np.int64).tolist()
    return whole
