"""Scores of trials: one number, higher is better, for the return or for seconds and dollars to a target."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stellaris_jax.many.choose.objective import Goal, mean_curve, reached
from stellaris_jax.telemetry.format import dollars, significant


def score(evaluations: Sequence[Mapping[str, Any]], goal: Goal) -> float:
    """Score of a trial by its evaluations so far; NaN without any.

    Of returns it is the last one. Of seconds and dollars it is the highest return below the target, and
    target + 1 / (1 + seconds) from the target on. So a trial that has reached the target is ahead of one that has not,
    and of two that have, the faster one is ahead.

    Args:
      evaluations: records of the evaluations.
      goal: what is compared.
    """
    if not evaluations:
        return math.nan
    if goal.target is None:
        return float(evaluations[-1]["eval_return_mean"])
    curve = mean_curve(evaluations, goal.axis)
    place = reached(curve, goal.target)
    if math.isfinite(place):
        return goal.target + 1.0 / (1.0 + place)
    return float(np.max(curve[1]))


def shown(value: float, goal: Goal) -> str:
    """Score in words: `return 480`, or `return 400 in 121 s`."""
    if goal.target is None or value <= goal.target:
        return f"return {significant(value)}"
    place = 1.0 / (value - goal.target) - 1.0
    spent = f"{significant(place)} s" if goal.measure == "seconds" else dollars(place)
    return f"return {goal.target:g} in {spent}"
