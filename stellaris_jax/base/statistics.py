"""Means and intervals over seeds, and curves on a common grid."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike

# scipy.special is imported where it is used, because its import takes a tenth of the time to start a run.

QUANTILES = (
    12.706204736174694, 4.302652729749462, 3.1824463052837078, 2.7764451051977934, 2.5705818356363146,
    2.4469118511449786, 2.364624251592784, 2.306004135204166, 2.262157162798205, 2.228138851986274, 2.200985160091639,
    2.1788128296672284, 2.1603686564627913, 2.144786687917804, 2.131449545559776, 2.1199052992212546,
    2.1098155778333156, 2.1009220402410382, 2.0930240544083087, 2.085963447265864, 2.0796138447276795,
    2.0738730679040254, 2.0686576104190486, 2.0638985616280245, 2.0595385527532972, 2.0555294386428735,
    2.0518305164802846, 2.0484071417952454, 2.045229642132703, 2.0422724563012378, 2.039513446396408,
    2.0369333434601016, 2.0345152974493383, 2.0322445093177186, 2.030107928250343, 2.0280940009804502,
    2.0261924630291093, 2.0243941639119694, 2.022690920036761, 2.021075390306273,
)  # fmt: skip
"""The 97.5 % quantiles of Student's t for 1, 2, ... degrees of freedom."""
TAIL = (
    1.9599639845400536, 2.3722712302985607, 2.8224987157396086, 2.555849679507719, 1.5895340533938196,
    0.7328982119816038,
)  # fmt: skip
"""Coefficients of the quantile for more degrees of freedom, by powers of their inverse (Fisher and Cornish 1960).

Their sum is within 1e-10 of it, so that intervals of means need no SciPy.
"""
FEWEST = 5
"""Fewest seeds that an interval is shown for; with two, Student's t makes it thirteen times as wide as their gap."""
ROUNDING = 1e-9
"""Relative difference up to which two figures are equal; sums of floats in another order differ by rounding."""
Curve = tuple[np.ndarray, np.ndarray]
"""One seed's curve: x, not decreasing, and y, both `[points]`."""


def mean(values: Iterable[float], empty: float = 0.0) -> float:
    """Mean of the values, or `empty` if there are none."""
    values = list(values)
    return float(sum(values) / len(values)) if values else empty


def mean_ci95(values: ArrayLike) -> tuple[float, float]:
    """Mean of `values` [seeds] and half the width of its 95 % interval (Student's t, n - 1 degrees of freedom).

    The half-width is NaN for fewer than two values, and 0 for a spread by rounding alone. The mean of no values is NaN.

    Few seeds say little: for two, the interval is more than twelve times as wide as their gap.

    >>> [[round(figure, 1) for figure in mean_ci95(returns)] for returns in ([90, 110], [90, 110] * 5)]
    [[100.0, 127.1], [100.0, 7.5]]
    """
    sample = np.asarray(values, dtype=float)
    if sample.size == 0:
        return math.nan, math.nan
    if sample.size == 1:
        return float(sample[0]), math.nan
    error = float(sample.std(ddof=1)) / math.sqrt(sample.size)
    if error <= rounding_of(sample):
        error = 0.0
    return float(sample.mean()), quantile(sample.size - 1) * error


def quantile(freedom: int) -> float:
    """The 97.5 % quantile of Student's t for so many degrees of freedom."""
    if freedom <= len(QUANTILES):
        return QUANTILES[freedom - 1]
    return sum(coefficient / freedom**power for power, coefficient in enumerate(TAIL))


def rounding_of(*samples: np.ndarray) -> float:
    """Largest difference by rounding between equal figures of `samples`."""
    return ROUNDING * max(float(np.abs(sample).max()) for sample in samples)


def welch(a: ArrayLike, b: ArrayLike) -> tuple[float, float, float]:
    """Difference of the means of two samples `a` and `b`, half the width of its 95 % interval, and its p-value.

    Welch's two-sided test: the samples may have different sizes and variances. Half-width and p-value are NaN if a
    sample has fewer than two values. Samples without spread differ with certainty, unless they are equal up to
    rounding.

    >>> [round(figure, 3) for figure in welch([9, 10, 11], [4, 5, 6])]
    [5.0, 2.267, 0.004]
    """
    first, second = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    if min(first.size, second.size) < 2:
        known = min(first.size, second.size) > 0
        return float(first.mean() - second.mean()) if known else math.nan, math.nan, math.nan
    difference = float(first.mean() - second.mean())
    squares = [sample.var(ddof=1) / sample.size for sample in (first, second)]
    error = sum(squares)
    rounding = rounding_of(first, second)
    if math.sqrt(error) <= rounding:
        same = abs(difference) <= rounding
        return 0.0 if same else difference, 0.0, float(same)
    from scipy.special import stdtr, stdtrit

    freedom = error**2 / sum(s**2 / (n.size - 1) for s, n in zip(squares, (first, second), strict=True))
    scale = math.sqrt(error)
    return difference, float(stdtrit(freedom, 0.975) * scale), float(2 * stdtr(freedom, -abs(difference) / scale))


def paired(a: ArrayLike, b: ArrayLike) -> tuple[float, float, float]:
    """Mean difference of two samples of the same seeds, half the width of its 95 % interval, and its p-value.

    Student's two-sided t-test of the differences. The interval and the p-value are NaN for fewer than two seeds.

    >>> [round(figure, 3) for figure in paired([9, 10, 12], [4, 6, 6])]
    [5.0, 2.484, 0.013]
    """
    first, second = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    if first.shape != second.shape:
        raise ValueError(f"{first.size} and {second.size} values cannot be paired")
    difference, half_width = mean_ci95(first - second)
    if first.size < 2:
        return difference, math.nan, math.nan
    from scipy.special import stdtr

    rounding = rounding_of(first, second)
    error = half_width / quantile(first.size - 1)
    if error <= rounding:
        same = abs(difference) <= rounding
        return 0.0 if same else difference, 0.0, float(same)
    return difference, half_width, float(2 * stdtr(first.size - 1, -abs(difference) / error))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values of hypotheses that are tested together; his procedure rejects those below the level.

    >>> holm([0.03, 0.01, 0.5])  # 3 * 0.01, 2 * 0.03, 1 * 0.5
    [0.06, 0.03, 0.5]
    """
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def rank_area(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Probability that one of ours exceeds one of theirs, ties counted half: Mann and Whitney's U over all pairs.

    If ours are values with an event and theirs without, it is the area under the ROC curve. NaN without any pair.

    >>> rank_area(np.array([3.0, 2.0]), np.array([1.0, 2.0]))
    0.875
    >>> round(rank_area(np.array([3.0]), np.array([1.0, 2.0, 3.0])), 4)
    0.8333
    """
    if not ours.size * theirs.size:
        return float("nan")
    difference = np.subtract.outer(ours, theirs)
    return float(np.mean((difference > 0) + 0.5 * (difference == 0)))


def on_common_grid(curves: Sequence[Curve], points: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """Curves, linearly interpolated on `points` even steps of their common range.

    Returns the grid [points] and the values [curves, points]. The grid is a single point if the range is one, and empty
    if the curves share no range.
    """
    low = max(x[0] for x, _ in curves)
    high = min(x[-1] for x, _ in curves)
    grid = np.linspace(low, high, points) if low < high else np.full(int(low == high), low)
    return grid, np.stack([np.interp(grid, x, y) for x, y in curves])


def band(curves: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Grid, mean, and lower and upper end of the 95 % interval over curves, each [points]; see `within_data`.

    The ends are NaN for fewer than FEWEST curves.
    """
    grid, values = on_common_grid(curves)
    intervals = [mean_ci95(column) for column in values.T]
    mean, half_width = np.array(intervals, dtype=float).reshape(-1, 2).T
    return grid, mean, *within_data(mean, half_width, values)


def within_data(mean: np.ndarray, half_width: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ends of intervals, clipped to the range of the seeds at each point.

    Student's interval is symmetric and may leave the possible range: for four returns of 500 and one of 300 it exceeds
    500.

    Args:
      mean: `[points]`.
      half_width: half the width of the intervals `[points]`.
      values: `[seeds, points]`.

    Returns:
      Lower and upper ends `[points]`; NaN for fewer than FEWEST seeds.
    """
    if len(values) < FEWEST:
        return np.full_like(mean, np.nan), np.full_like(mean, np.nan)
    return np.fmax(mean - half_width, values.min(axis=0)), np.fmin(mean + half_width, values.max(axis=0))
