"""Verdict of a choice: finalists and baselines compared on fresh seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from stellaris_jax.base.statistics import holm, mean, mean_ci95, paired
from stellaris_jax.many.choose.objective import Goal, final_returns, reached, seed_curves, to_target
from stellaris_jax.many.choose.screening import Timing

LEAST = 1e-12
"""Seconds or dollars that count as none, so that they have a logarithm."""
LEVEL = 0.05
"""Significance level after Holm's correction."""


class Interval(NamedTuple):
    """Mean with its 95 % interval (Student's t).

    Attributes:
      middle: the mean.
      low: lower end; NaN for one seed.
      high: upper end.
    """

    middle: float
    low: float
    high: float


class Judged(NamedTuple):
    """Candidate on fresh seeds.

    Attributes:
      number: number of the candidate.
      name: its arm.
      learning_rate: its learning rate.
      values: seconds or dollars of each seed to the target, unreached ones penalised; or final returns.
      reached: number of seeds that reached the target; `None` without a target.
      returns: last return of each seed.
      timing: forecast of its timeline.
    """

    number: int
    name: str
    learning_rate: float
    values: list[float]
    reached: int | None
    returns: list[float]
    timing: Timing

    @property
    def interval(self) -> Interval:
        """Mean over seeds with its 95 % interval; see `interval_of`."""
        return interval_of(self.values, geometric=self.reached is not None)


def interval_of(values: Sequence[float], geometric: bool) -> Interval:
    """Mean with its 95 % interval: geometric of seconds and dollars, arithmetic of returns.

    Ratios of geometric means are what the tests compare, so a ranking never contradicts them.

    >>> [round(end, 2) for end in interval_of([8.0, 10.0, 12.5], geometric=True)]
    [10.0, 5.74, 17.41]
    """
    middle, half = mean_ci95(_scale(values) if geometric else values)
    ends = (middle, middle - half, middle + half)
    return Interval(*(map(math.exp, ends) if geometric else ends))


def _scale(values: Sequence[float]) -> np.ndarray:
    """Logarithms of seconds or dollars."""
    return np.log(np.maximum(values, LEAST))


class Difference(NamedTuple):
    """Comparison of the first candidate with another one, on the same seeds.

    Attributes:
      ratio: how many times as long or dear the other one is; of returns, the first one's less the other's.
      low: lower end of its 95 % interval.
      high: upper end.
      p: p-value, adjusted by Holm over all comparisons.
    """

    ratio: float
    low: float
    high: float
    p: float

    @property
    def separated(self) -> bool:
        """Whether the two differ significantly."""
        return self.p < LEVEL


def judged(
    number: int,
    name: str,
    learning_rate: float,
    evaluations: Sequence[Mapping[str, Any]],
    goal: Goal,
    cutoff: float,
    timing: Timing,
) -> Judged:
    """Result of a candidate's run on fresh seeds.

    Args:
      number: number of the candidate.
      name: its arm.
      learning_rate: its learning rate.
      evaluations: records of its run's evaluations.
      goal: what is compared, with a target unless it is the return.
      cutoff: seconds or dollars of the longest setting, means over its seeds, for the penalty of seeds that do not
        reach the target.
      timing: forecast of its timeline.
    """
    curves = seed_curves(evaluations, goal.axis)
    returns = final_returns(curves)
    if goal.target is None:
        return Judged(number, name, learning_rate, returns, None, returns, timing)
    values = to_target(curves, goal.target, cutoff)
    there = sum(math.isfinite(reached(curve, goal.target)) for curve in curves)
    return Judged(number, name, learning_rate, values, there, returns, timing)


def ordered(results: Sequence[Judged], goal: Goal) -> list[Judged]:
    """Results, best first, by their means, and by last returns if no seed of theirs reached the target."""
    sign = -1.0 if goal.target is None else 1.0
    return sorted(results, key=lambda own: (sign * own.interval.middle, -mean(own.returns), own.number))


def differences(results: Sequence[Judged], goal: Goal) -> list[Difference]:
    """Comparisons of the first result with each other one; seeds are paired, and p-values adjusted by Holm."""
    first, others = results[0], results[1:]
    raw = [_difference(first, other, goal) for other in others]
    adjusted = holm([p if math.isfinite(p) else 1.0 for *_, p in raw])
    return [Difference(ratio, low, high, p) for (ratio, low, high, _), p in zip(raw, adjusted, strict=True)]


def _difference(first: Judged, other: Judged, goal: Goal) -> tuple[float, float, float, float]:
    if goal.target is None:
        value, half, p = paired(first.values, other.values)
        return value, value - half, value + half, p
    value, half, p = paired(_scale(other.values), _scale(first.values))
    low, high = math.exp(value - half), math.exp(value + half)
    return math.exp(value), low, high, p


class Scaling(NamedTuple):
    """The choice with another number of learners.

    Attributes:
      learners: number of learners.
      values: seconds or dollars of each seed to the target, or final returns.
      staleness: mean staleness of its gradients, in versions.
      reached: number of seeds that reached the target; None without one.
    """

    learners: int
    values: list[float]
    staleness: float
    reached: int | None = None


def enough(scalings: Sequence[Scaling], goal: Goal) -> tuple[int, int]:
    """Fewest learners that are not significantly worse than the best number of those tried, and that best number.

    Args:
      scalings: results with each number of learners, on the same seeds.
      goal: what is compared.
    """
    sign = -1.0 if goal.target is None else 1.0
    by_number = sorted(scalings, key=lambda own: own.learners)
    values = [own.values if goal.target is None else _scale(own.values) for own in by_number]
    best = min(range(len(values)), key=lambda place: sign * mean(values[place]))
    for place, own in enumerate(by_number):
        gain, _, p = paired(values[place], values[best])
        if place == best or not (sign * gain > 0 and p < LEVEL):
            return own.learners, by_number[best].learners
    raise AssertionError("the best number is among those tried")


def foretold(result: Judged, other: Timing, goal: Goal) -> float:
    """Mean seconds or dollars to the target with another timeline, as if every seed took as many rounds."""
    own = result.timing
    factor = other.dollars / own.dollars if goal.measure == "dollars" else other.seconds / own.seconds
    return result.interval.middle * factor
