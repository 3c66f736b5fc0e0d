"""Comparison of a search's study with its trials' runs: the runs are sealed, the database is not."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.config.continuation import RESUMABLE
from stellaris_jax.config.old_options import renamed
from stellaris_jax.config.options import complete
from stellaris_jax.config.schema import flatten, plain, shown
from stellaris_jax.config.tree import Config
from stellaris_jax.many.choose.objective import Goal
from stellaris_jax.many.score import score
from stellaris_jax.many.search_store import STORAGE, storing
from stellaris_jax.report.runs import SUMMARY, Run, planned_evaluations, read_run
from stellaris_jax.telemetry.format import significant
from stellaris_jax.telemetry.integrity import PLACES
from stellaris_jax.telemetry.jsonl import warn_on_stderr

FREE = tuple(key for key in (*PLACES, *RESUMABLE) if key not in ("total_steps", "evaluation"))
"""Keys, and groups of keys, that a trial's run may have changed without losing comparability."""
TO_THE_END = "to_the_end"
"""Attribute of a trial that ran to its end before; it is no longer compared at rungs."""

State = optuna.trial.TrialState
FrozenTrial = optuna.trial.FrozenTrial


def corrected(directory: Path, config: Config, study: optuna.Study, goal: Goal) -> list[FrozenTrial] | None:
    """Trials of a study, corrected by their runs; None if no correction is needed.

    Finished trials get the scores of their runs. A finished trial whose run is missing or damaged becomes running
    again, with the same settings. Each correction is reported on stderr.

    Args:
      directory: directory of the search.
      config: configuration that is tuned.
      study: study as stored in `study.db`.
      goal: what trials are compared by.

    Raises:
      ConfigError: a run's settings differ from the study and the configuration.
    """
    with storing(directory, Exception):  # a damaged file makes Optuna raise all kinds of errors
        trials = study.get_trials()
    changed = False
    planned = planned_evaluations(config.rounds, config.evaluation.points)
    for trial in trials:
        place = directory / str(trial.number)
        run = read_run(place, lambda message: None)
        check_settings(place, run.config, config, trial.params)
        if trial.state in (State.FAIL, State.PRUNED) and _is_complete(run, config):
            warn_on_stderr(
                f"trial {trial.number}: {directory / STORAGE} calls it {trial.state.name.lower()}, and its run has a "
                "result, which counts"
            )
            trial.state, changed = State.COMPLETE, True
        if trial.state not in (State.COMPLETE, State.PRUNED):
            continue
        if trouble := _lost(trial, run, config):
            warn_on_stderr(f"trial {trial.number} has no result any more ({trouble}); it is trained again")
            _take_up_again(trial, run)
            changed = True
        else:
            changed |= _correct(trial, run, planned, goal)
    return trials if changed else None


def check_settings(place: Path, stored: Mapping[str, Any], config: Config, values: Mapping[str, Any]) -> None:
    """Raise ConfigError if the settings of a trial's run differ from the proposed ones.

    Args:
      place: directory of the run.
      stored: the run's flat configuration; keys that it lacks are not compared.
      config: configuration that is tuned.
      values: the trial's values in the study.
    """
    if not stored:
        return
    values = renamed(values, config)
    expected = flatten(plain(complete(config.replace(values))))
    for key in sorted(expected.keys() & stored.keys()):
        if any(key == free or key.startswith(f"{free}.") for free in FREE) or (key == "env.name" and key in values):
            continue
        if _text(expected[key]) != _text(stored[key]):
            source = STORAGE if key in values else "config.yaml"
            raise ConfigError(
                f"{place / 'config.yaml'} has {key}={shown(stored[key])}, and {place.parent / source} says "
                f"{shown(expected[key])}: one of the files was changed or replaced. Put it back, or begin a new search."
            )


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def evaluated_scores(rows: Sequence[Mapping[str, Any]], planned: Sequence[int], goal: Goal) -> dict[int, float]:
    """Scores at evaluations, keyed by rung: the number of the planned evaluation, from 1 on."""
    known = [row for row in rows if _is_return(row)]
    return {rung_of(row, planned): score(known[: index + 1], goal) for index, row in enumerate(known)}


def rung_of(row: Mapping[str, Any], planned: Sequence[int]) -> int:
    """Rung of an evaluation: the number of the planned evaluation, from 1 on."""
    return sum(number < row["round"] for number in planned) + 1


def _is_return(row: Mapping[str, Any]) -> bool:
    value = row.get("eval_return_mean")
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _lost(trial: FrozenTrial, run: Run, config: Config) -> str:
    """Reason why the run of a finished trial has to be repeated; "" without one."""
    if not run.path.is_dir():
        return f"{run.path} is missing"
    if not run.config:
        return f"{run.path / 'config.yaml'} is missing or damaged"
    if run.damage:
        return run.damage[0]
    if trial.state == State.PRUNED:
        return "" if run.summary or (run.curve and run.evaluations) else f"{run.path} has no evaluation"
    if run.summary is None or not _is_return(run.summary):
        return f"{run.path / SUMMARY} is missing or has no return"
    is_over = run.summary.get("ended_early") is True or _is_complete(run, config)
    return "" if is_over else f"{run.path} is not over"


def _is_complete(run: Run, config: Config) -> bool:
    """Whether a run was trained for all its rounds, has a return, and is not damaged."""
    if run.damage or not run.config or run.summary is None or not _is_return(run.summary):
        return False
    rounds = run.summary.get("rounds")
    return isinstance(rounds, int) and rounds >= config.rounds


def _take_up_again(trial: FrozenTrial, run: Run) -> None:
    """Turn a finished trial into a running one; a complete trial will run to its end again."""
    if trial.state == State.COMPLETE:
        trial.set_user_attr(TO_THE_END, True)
    if not (run.evaluations and run.curve):
        trial.intermediate_values = {}
    trial.state, trial.datetime_complete, trial.values = State.RUNNING, None, None


def _correct(trial: FrozenTrial, run: Run, planned: Sequence[int], goal: Goal) -> bool:
    """Give a finished trial the scores of its run; returns whether they differed."""
    returns = evaluated_scores(run.evaluations, planned, goal) if run.curve and run.evaluations else {}
    value = run.summary["eval_return_mean"] if trial.state == State.COMPLETE and run.summary else None
    if value is not None and goal.target is not None:
        value = returns[max(returns)] if returns else None
    changed = False
    if value is not None and not (trial.value is not None and math.isclose(trial.value, value, rel_tol=1e-9)):
        wrong = "none" if trial.value is None else significant(trial.value)
        warn_on_stderr(
            f"trial {trial.number}: {run.path.parent / STORAGE} says return {wrong}, its run {significant(value)}, "
            "which counts: the database was changed or is damaged"
        )
        trial.values, changed = [value], True
    known = trial.intermediate_values
    same = known.keys() == returns.keys() and all(
        math.isclose(known[rung], returns[rung], rel_tol=1e-9) for rung in returns
    )
    if returns and not same:
        warn_on_stderr(
            f"trial {trial.number}: {run.path.parent / STORAGE} has other evaluations than its run, whose returns "
            "count: the database was changed or is damaged"
        )
        trial.intermediate_values, changed = returns, True
    return changed
