"""Comparison of a search's best trial with the untuned settings, on seeds that the search has not seen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import optuna

from stellaris_jax.base.errors import RunError
from stellaris_jax.base.statistics import mean_ci95, paired
from stellaris_jax.config.old_options import renamed
from stellaris_jax.config.tree import Config
from stellaris_jax.execute.loading import checked
from stellaris_jax.many.choose.decisions import Decisions
from stellaris_jax.many.choose.files import FRESH, NOWHERE, Options, laid
from stellaris_jax.many.choose.objective import PENALISED, Goal, final_returns, misses, reached, seed_curves, to_target
from stellaris_jax.many.choose.stage import Stage, evaluations, is_over
from stellaris_jax.many.search_store import Search, resume_command
from stellaris_jax.telemetry.format import significant


def judge(directory: Path, study: optuna.Study, config: Config, search: Search, parallel: int | None = None) -> str:
    """Train the best trial's settings and the untuned ones on fresh seeds; returns the comparison as a sentence.

    Runs that are done are not repeated.

    Args:
      directory: directory of the search.
      study: its study, with a best trial.
      config: configuration that was tuned.
      search: options of the search, with fresh seeds.
      parallel: most concurrent runs; `None` for as many as cores and memory allow.

    Raises:
      Interrupted: a signal arrived and everything was saved; Abandoned after a second one.
      RunError: a run has no result.
    """
    fresh = {"seed": config.seed + FRESH, "num_seeds": search.fresh_seeds} | NOWHERE
    untuned = config.replace(fresh)
    tuned = checked(untuned.replace(renamed(study.best_trial.params, config)))
    configs = [tuned] if tuned == untuned else [tuned, untuned]
    place = directory / "judged" / str(study.best_trial.number)
    configs = laid(place, configs, ())
    options, goal = Options(budget=math.inf, parallel=parallel), search.goal
    stage = Stage(directory, options, Decisions(place, ()), print, resume_command(directory))
    with stage.stoppable():
        stage.to_target("results", configs, goal, "settings")
    if not all(is_over(own, goal) for own in configs):
        raise RunError(f"{place}: a run on fresh seeds has no result.")
    return _sentence(search.fresh_seeds, *_values(configs, goal), goal)


def _values(configs: Sequence[Config], goal: Goal) -> tuple[list[list[float]], list[int]]:
    """Seconds or dollars of each seed to the target, or its final return, for each run; and seeds that reached it."""
    runs = [evaluations(own) for own in configs]
    curves = [seed_curves(rows, goal.axis) for rows in runs]
    if goal.target is None:
        return [final_returns(own) for own in curves], list(map(len, curves))
    target, cutoff = goal.target, max(rows[-1][goal.axis] for rows in runs)
    there = [sum(math.isfinite(reached(curve, target)) for curve in own) for own in curves]
    return [to_target(own, target, cutoff) for own in curves], there


def _sentence(seeds: int, values: Sequence[Sequence[float]], there: Sequence[int], goal: Goal) -> str:
    missed = [misses(number, seeds) for number in there]
    shown = [
        f"{_interval(*mean_ci95(own))}{note and f' ({note})'}" if number else "never reached"
        for own, number, note in zip(values, there, missed, strict=True)
    ]
    what = "return" if goal.target is None else f"{goal.measure} to a return of {goal.target:g}"
    if len(values) == 1:
        return f"on {seeds} fresh seeds: {what} {shown[0]}; the best settings are the untuned ones."
    difference, half, _ = paired(*values)
    compared = f"; difference {_interval(difference, half)}" if all(there) else ""
    penalised = f" {PENALISED}" if any(missed) else ""
    return (
        f"on {seeds} fresh seeds: {what} {shown[0]}, untuned {shown[1]}{compared} "
        f"(± is half of a 95 % interval).{penalised}"
    )


def _interval(middle: float, half: float) -> str:
    return f"{significant(middle)} ± {significant(half, 2)}" if math.isfinite(half) else significant(middle)
