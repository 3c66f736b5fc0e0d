"""Verdict of a choice: finalists and baselines compared on fresh seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from stellaris_jax.base.statistics import holm, mean, mean_ci95, paired
from stellaris_jax.many.choose.objective import Goal, final_returns, reached, seed_curves, to_target
from stellaris_jax.many.choose.screening import Timing

LEVEL = 0.05
"""Significance level after Holm's correction."""


class Judged(NamedTuple):
    """Candidate on fresh seeds.

    Attributes:
      number: number of the candidate.
      name: its arm.
      learning_rate: its learning rate.
      values: seconds or dollars of each seed to the target, unreached ones penalised; or final returns.
      reached: number of seeds that reached the target; `None` without a target.
      returns: last return of each seed.
      rounds: mean number of rounds to the target, over the seeds that reached it; `None` without any.
      timing: forecast of its timeline.
    """

    number: int
    name: str
    learning_rate: float
    values: list[float]
    reached: int | None
    returns: list[float]
    rounds: float | None
    timing: Timing

    @property
    def interval(self) -> tuple[float, float]:
        """Mean of the values and half the width of its 95 % interval over seeds."""
        return mean_ci95(self.values)


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
      cutoff: seconds or dollars of the longest run, for the penalty of seeds that do not reach the target.
      timing: forecast of its timeline.
    """
    curves = seed_curves(evaluations, goal.axis)
    returns = final_returns(curves)
    if goal.target is None:
        return Judged(number, name, learning_rate, returns, None, returns, None, timing)
    values = to_target(curves, goal.target, cutoff)
    rounds = [reached(curve, goal.target) for curve in seed_curves(_by_round(evaluations, goal.axis), goal.axis)]
    there = [place for place in rounds if math.isfinite(place)]
    return Judged(number, name, learning_rate, values, len(there), returns, mean(there) if there else None, timing)


def _by_round(evaluations: Sequence[Mapping[str, Any]], axis: str) -> list[dict[str, Any]]:
    """Records of evaluations whose axis counts rounds."""
    returns = [row["per_seed"]["eval_return_mean"] for row in evaluations]
    return [
        {"per_seed": {"eval_return_mean": own, axis: [row["round"]] * len(own)}}
        for row, own in zip(evaluations, returns, strict=True)
    ]


def ordered(results: Sequence[Judged], goal: Goal) -> list[Judged]:
    """Results, best first, by their means."""
    sign = -1.0 if goal.target is None else 1.0
    return sorted(results, key=lambda own: (sign * own.interval[0], own.number))


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
    logarithms = [np.log(np.maximum(own.values, 1e-12)) for own in (other, first)]
    value, half, p = paired(*logarithms)
    low, high = math.exp(value - half), math.exp(value + half)
    return math.exp(value), low, high, p


class Scaling(NamedTuple):
    """The choice with another number of learners.

    Attributes:
      learners: number of learners.
      values: seconds or dollars of each seed to the target, or final returns.
      staleness: mean staleness of its gradients, in versions.
    """

    learners: int
    values: list[float]
    staleness: float


def enough(scalings: Sequence[Scaling], goal: Goal) -> tuple[int, int]:
    """Fewest learners that are not significantly worse than the best number of those tried, and that best number.

    Args:
      scalings: results with each number of learners, on the same seeds.
      goal: what is compared.
    """
    sign = -1.0 if goal.target is None else 1.0
    by_number = sorted(scalings, key=lambda own: own.learners)
    best = min(by_number, key=lambda own: sign * mean(own.values))
    for own in by_number:
        gain, _, p = paired(own.values, best.values)
        if own is best or not (sign * gain > 0 and p < LEVEL):
            return own.learners, best.learners
    raise AssertionError("the best number is among those tried")


def foretold(result: Judged, other: Timing) -> float | None:
    """Seconds to the target with another timeline, as if it took as many rounds; `None` if it was not reached."""
    return None if result.rounds is None else result.rounds * other.seconds
