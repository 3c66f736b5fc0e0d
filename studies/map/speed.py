"""Seconds to a return: asynchronous learners beside one learner and beside learners that wait, on every task."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from stellaris_jax.base.statistics import welch
from stellaris_jax.telemetry.format import significant
from studies.claims import Claim, less, sooner
from studies.hardware import AT_ONCE, full_gpu, simulated
from studies.map import pictures
from studies.map.cells import HELD_OUT, HELD_OUT_LEARNERS, LEARNER_COUNTS, SEQUENTIAL, TASKS, Cell, grid, held_out_cells
from studies.map.choices import BASELINE, MAPPED, TaskResults, final, requested_tasks, seconds_to, values
from studies.map.store import Outcome
from studies.study import Study

ONE = "one learner"
METHODS = (BASELINE, SEQUENTIAL, "softsync", "Stellaris")
"""Methods that were trained on every task."""
WEIGHTED = "softsync, w = 1/s"
"""A further method, which was trained on the mapped tasks only."""
WHOLE_GPU = "one learner, whole GPU"
ALONE = ("one learner, no parameter function", WHOLE_GPU)
"""One learner on other hardware, which changes its time alone; with a whole GPU it has no parameter function either."""
RIVALS = (ONE, *ALONE, SEQUENTIAL)
SHARE = 0.5
"""Goal, as a share of what one learner has at the end on the tuning seeds."""
LABELS = {
    "cartpole": "CartPole",
    "acrobot": "Acrobot",
    "breakout": "Breakout",
    "asterix": "Asterix",
    "pendulum": "inverted pendulum",
    "brax_hopper": "brax's hopper",
    "hopper": "envpool's Hopper",
}
"""Tasks' names in the picture."""
FACTORS = (0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 5.6)
"""Ticks of the picture."""
HEADER = ("task", "learners", "method", "rate", "goal", "reached", "seconds", "times_as_fast", "low", "high")


def speed(study: Study) -> list[Claim] | None:
    """Seconds to half of what one learner ends with, each method at its best rate by area.

    Hardware is not equal: n learners are n functions, and one learner is one, with a quarter of a GPU. So it is timed
    in two other ways, too (`ALONE`).
    """
    tasks = requested_tasks(study, (*MAPPED, *HELD_OUT))
    if not tasks:
        return None
    claims, rows, faster, gains = [], [], [], {}
    for task in tasks:
        numbers = LEARNER_COUNTS if task in MAPPED else (HELD_OUT_LEARNERS,)
        for learners in numbers:
            runs, goal = _runs(study, task, learners)
            taken = {method: [seconds_to(run, goal) for run in own] for method, own in runs.items()}
            for name in ALONE:
                factors = [_factor(run, name) for run in runs[ONE]]
                taken[name] = [factor * end for factor, end in zip(factors, taken[ONE], strict=True)]
                if learners == numbers[0]:
                    faster += [(task, name, run.seed, f"{f:.4g}") for run, f in zip(runs[ONE], factors, strict=True)]
            for method, seconds in taken.items():
                ratio = times_as_fast(taken[ONE], seconds)
                rate = runs[ONE if method in ALONE else method][0].cell.rate
                reached = sum(map(math.isfinite, seconds))
                median = significant(float(np.median(seconds))) if np.isfinite(np.median(seconds)) else ""
                figures = ("", "", "") if ratio is None else tuple(f"{value:.3g}" for value in ratio)
                rows.append((task, learners, method, rate, f"{goal:.3g}", reached, median, *figures))
                if ratio is not None and method in runs and method != ONE:
                    gains[f"{LABELS[task]}, {learners} learners, {method}"] = (_logs(taken[ONE]), _logs(seconds))
            for rival in RIVALS:
                text = (
                    f"{task}, {learners} learners: async needs fewer seconds to half of one learner's end than {rival}"
                )
                sides = taken[BASELINE], taken[rival]
                if np.isfinite(np.concatenate(sides)).all():
                    claims.append(less(text + " (logarithms)", "–", _logs(sides[0]), _logs(sides[1])))
                else:
                    claims.append(sooner(text, "–", sides[0], sides[1]))
    study.table("speed", HEADER, rows)
    study.table("speed_hardware", ("task", "hardware", "seed", "seconds"), faster)
    title = "Seconds to half of what one learner ends with"
    axis, kinds = "times as fast as one learner, and its 95 % interval", ("faster", "not shown", "slower")
    pictures.forest(gains, study.picture("speed"), title, axis=axis, kinds=kinds, factors=FACTORS)
    return claims


def _runs(study: Study, task: str, learners: int) -> tuple[dict[str, list[Outcome]], float]:
    """Confirming runs of each method, and the goal as a share of the way to solved."""
    mapped = task in MAPPED
    methods = (*METHODS, WEIGHTED) if mapped else METHODS
    tried = grid([task], methods, (1, learners)) if mapped else held_out_cells(task, methods)
    results = TaskResults(study.results, task, tuple(tried))
    cells: Mapping[str, Cell] = {
        ONE: results.best(SEQUENTIAL, 1),
        **{method: results.best(method, learners) for method in methods},
    }
    goal = SHARE * float(np.mean(values(results.tuning, cells[ONE], final)))
    confirmed = results.confirmed(cells.values())
    return {method: confirmed[cell] for method, cell in cells.items()}, goal


def _factor(run: Outcome, name: str) -> float:
    """Seconds of one learner on other hardware, over those of its run."""
    variant = run.cell.variant
    whole = full_gpu(variant) if name == WHOLE_GPU else ()
    alone, own = (
        simulated(settings, run.seed) for settings in ((*variant.overrides, *AT_ONCE, *whole), variant.overrides)
    )
    return alone.seconds / own.seconds


def _logs(seconds: Sequence[float]) -> list[float]:
    """Logarithms to base 2; NaN for a run that does not get there."""
    return [math.log2(value) if math.isfinite(value) else math.nan for value in seconds]


def times_as_fast(slow: Sequence[float], fast: Sequence[float]) -> tuple[float, float, float] | None:
    """Ratio of geometric means with its 95 % interval; None if a run of either side does not get there.

    >>> times_as_fast([8.0, 8.0], [4.0, 4.0])
    (2.0, 2.0, 2.0)
    """
    logs = [np.array(_logs(side)) for side in (slow, fast)]
    if not np.isfinite(np.concatenate(logs)).all():
        return None
    difference, half, _ = welch(*logs)
    return 2.0**difference, 2.0 ** (difference - half), 2.0 ** (difference + half)


assert {*MAPPED, *HELD_OUT} == {*TASKS}
