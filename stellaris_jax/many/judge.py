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
from stellaris_jax.many.choose.objective import Goal, final_returns, seed_curves, to_target
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
    return _sentence(search.fresh_seeds, _values(configs, goal), goal)


def _values(configs: Sequence[Config], goal: Goal) -> list[list[float]]:
    """Seconds or dollars of each seed to the target, or its final return, for each run."""
    runs = [evaluations(own) for own in configs]
    curves = [seed_curves(rows, goal.axis) for rows in runs]
    if goal.target is None:
        return [final_returns(own) for own in curves]
    cutoff = max(rows[-1][goal.axis] for rows in runs)
    return [to_target(own, goal.target, cutoff) for own in curves]


def _sentence(seeds: int, values: Sequence[Sequence[float]], goal: Goal) -> str:
    shown = [_interval(*mean_ci95(own)) for own in values]
    what = "return" if goal.target is None else f"{goal.measure} to a return of {goal.target:g}"
    if len(values) == 1:
        return f"on {seeds} fresh seeds: {what} {shown[0]}; the best settings are the untuned ones."
    difference, half, _ = paired(*values)
    return (
        f"on {seeds} fresh seeds: {what} {shown[0]}, untuned {shown[1]}; difference {_interval(difference, half)} "
        "(± is half of a 95 % interval)."
    )


def _interval(middle: float, half: float) -> str:
    return f"{significant(middle)} ± {significant(half, 2)}" if math.isfinite(half) else significant(middle)
