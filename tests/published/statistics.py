"""Intervals, tests and corrections, written without those of the package."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import t as student

Values = Sequence[float] | np.ndarray
CONFIDENCE = 0.95
ALPHA = 1 - CONFIDENCE


class Difference(NamedTuple):
    """Difference of two means.

    Attributes:
      mean: the first less the second.
      half: half of its interval.
      p: probability of one as large by chance.
    """

    mean: float
    half: float
    p: float

    @property
    def verdict(self) -> str:
        """Whether the first is shown to be larger ("holds"), or smaller ("reversed")."""
        if self.p >= ALPHA:
            return "not shown"
        return "holds" if self.mean > 0 else "reversed"


def interval(values: Values) -> tuple[float, float]:
    """Mean and half of its interval, by Student's t."""
    sample = np.asarray(values, float)
    error = sample.std(ddof=1) / math.sqrt(len(sample))
    return float(sample.mean()), float(_quantile(len(sample) - 1) * error)


def welch(first: Values, second: Values) -> Difference:
    """Difference of two independent samples, whose variances need not be equal."""
    a, b = np.asarray(first, float), np.asarray(second, float)
    of_a, of_b = a.var(ddof=1) / len(a), b.var(ddof=1) / len(b)
    freedom = (of_a + of_b) ** 2 / (of_a**2 / (len(a) - 1) + of_b**2 / (len(b) - 1))
    return _difference(a.mean() - b.mean(), math.sqrt(of_a + of_b), freedom)


def paired(first: Values, second: Values) -> Difference:
    """Mean difference of two samples of the same seeds."""
    each = np.asarray(first, float) - np.asarray(second, float)
    return _difference(each.mean(), each.std(ddof=1) / math.sqrt(len(each)), len(each) - 1)


def holm(chances: Sequence[float]) -> list[float]:
    """Probabilities of a family of tests, corrected for their number in the order given."""
    corrected = [0.0] * len(chances)
    largest = 0.0
    for rank, place in enumerate(np.argsort(chances, kind="stable")):
        largest = max(largest, min(1.0, (len(chances) - rank) * chances[place]))
        corrected[place] = largest
    return corrected


def _difference(mean: float, error: float, freedom: float) -> Difference:
    if error == 0:
        return Difference(float(mean), 0.0, float(mean == 0))
    return Difference(float(mean), float(_quantile(freedom) * error), float(2 * student.sf(abs(mean) / error, freedom)))


def _quantile(freedom: float) -> float:
    return float(student.ppf(1 - ALPHA / 2, freedom))
