"""Figures of the study and their claims: `scripts/reproduce.py actors`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from stellaris_jax.base.statistics import mean_ci95, paired
from studies import panels as pictures
from studies.actors import answers
from studies.actors.cells import (
    ADMISSIONS,
    BARRIER,
    COARSE_RATES,
    CORRECTIONS,
    DROP,
    FETCHES,
    FINE_RATES,
    JUDGING,
    LADDER,
    PPO,
    TASKS,
    TUNING,
    WAIT,
    bounds_places,
    correction_places,
    rate_places,
    sync_places,
)
from studies.actors.laws import Law, at_end, claims_of, law
from studies.builds import current_build
from studies.choices import (
    Chosen,
    Measure,
    area,
    area_of_equal_seconds,
    equal_seconds,
    final,
    mean_of,
    next_rate,
    values,
)
from studies.claims import Claim, less, more, read_claims
from studies.outcomes import Cell, Outcome, at_rates, outcomes
from studies.study import Figure, Study

Judged = Mapping[Cell, Sequence[Outcome]]
PER_BATCH, PER_SECOND = "per batch", "per second"
"""Areas under learning curves over batches, and over simulated seconds up to the end of the shortest run."""


def bounds(study: Study) -> list[Claim] | None:
    """Blocking against discarding stale data, where a rollout lasts as long as its episode."""
    claims: list[Claim] = []
    rows, curves = [], {}
    for task in (tasks := requested(study, [name for name, one in TASKS.items() if one.bounded])):
        judged, at = _judged(study, bounds_places(task))
        measures = _measures(judged)
        curves[task] = {
            name: pictures.intervals([values(runs, measure) for runs in judged.values()])
            for name, measure in measures.items()
        }
        limit = equal_seconds(judged)
        rows += [
            [*row, *_text(limit, *mean_ci95([run.evaluated_by(limit) for run in runs]))]
            for row, runs in zip(_rows(judged, measures, HEADERS["bounds"][1]), judged.values(), strict=True)
        ]
        bare = at[task, BARRIER, 0]
        for bound in (0, 1, 2):
            wait, drop = at.get((task, WAIT, bound), bare), at[task, DROP, bound]
            sides = f"{task}, bound {bound}: waiting learns more than dropping"
            claims += [_more(f"{sides}, {name}", wait, drop, measure) for name, measure in measures.items()]
            if bound:
                text = f"{task}, bound {bound}: waiting learns more than the barrier, per second"
                claims.append(_more(text, wait, bare, measures[PER_SECOND]))
            claims += _bias(f"{task}, bound {bound}", drop, better=task == "cartpole")
    named = [f"{method}\n{bound}" if method != BARRIER else method for method, bound in ADMISSIONS]
    labels = dict.fromkeys(tasks, named)
    return _made(study, "bounds", claims, rows, curves, labels, "admission, and bound in batches", tasks, joined=False)


def _bias(text: str, drop: Sequence[Outcome], better: bool) -> list[Claim]:
    """Claims about dropped fragments: they are slower, and their episodes are better (or worse)."""
    slowness, gap = ([run.datum(f"fragments_dropped_{name}") for run in drop] for name in ("slowness", "return"))
    compare = more if better else less
    named = "higher" if better else "lower"
    return [
        more(f"{text}: dropped fragments take longer than all (paired)", "–", slowness, np.ones(len(drop)), "", paired),
        compare(f"{text}: dropped fragments have {named} returns than used ones", "–", gap, np.zeros(len(drop))),
    ]


def sync(study: Study) -> list[Claim] | None:
    """Fetches within a fragment of 128 steps, at no cost and at 0.13 s each, with data up to two batches ahead."""
    claims: list[Claim] = []
    rows, curves = [], {}
    for task in (tasks := requested(study, list(TASKS))):
        judged, at = _judged(study, sync_places(task))
        measures = _measures(judged)
        curves[task] = {
            f"{name}, fetch {fetch}": pictures.intervals(
                [values(at[task, fetch, steps], measures[name]) for steps in TASKS[task].sync_steps]
            )
            for name in (PER_BATCH, PER_SECOND)
            for fetch in FETCHES
        }
        rows += _rows(judged, measures, HEADERS["sync"][1])
        claims += [
            _more(
                f"{task}, fetch {fetch}: fetching every {steps} steps learns more than once per fragment, {name}",
                at[task, fetch, steps],
                at[task, fetch, 0],
                measure,
            )
            for fetch in FETCHES
            for steps in TASKS[task].sync_steps[1:]
            for name, measure in measures.items()
        ]
    labels = {task: [str(steps or "once") for steps in TASKS[task].sync_steps] for task in tasks}
    return _made(study, "sync", claims, rows, curves, labels, "env steps between fetches", tasks)


def corrections(study: Study) -> list[Claim] | None:
    """Off-policy corrections on data of exactly so many batches ago, each at its best learning rate."""
    claims: list[Claim] = []
    rows, curves = [], {}
    for task in (tasks := requested(study, list(TASKS))):
        lags = TASKS[task].corrected_lags
        judged, at = _judged(study, correction_places(task))
        curves[task] = {
            method: pictures.intervals([values(at[task, method, lag], area) for lag in lags]) for method in CORRECTIONS
        }
        rows += _rows(judged, {PER_BATCH: area}, HEADERS["corrections"][1])
        for lag in lags[1:]:
            text = f"{task}: {PPO} learns more from data of lag 0 than of lag {lag}"
            claims.append(_more(text, at[task, PPO, 0], at[task, PPO, lag], area))
            claims += [
                _more(
                    f"{task}, lag {lag}: {method} learns more than {PPO}",
                    at[task, method, lag],
                    at[task, PPO, lag],
                    area,
                )
                for method in CORRECTIONS
                if method != PPO
            ]
    labels = {task: [str(lag) for lag in TASKS[task].corrected_lags] for task in tasks}
    return _made(study, "corrections", claims, rows, curves, labels, "data lag in batches", tasks)


def rates(study: Study) -> list[Claim] | None:
    """Best learning rate by data lag, beside the law: constant, then 1 / (1 + lag)."""
    claims: list[Claim] = []
    rows, curves = [], {}
    for task in (tasks := requested(study, list(TASKS))):
        tried, areas = _areas(study, task)
        fitted = law(areas, TASKS[task].rate_lags, [float(rate) for rate in tried])
        curves[task] = {
            "best learning rate": [(best.value, best.low, best.high) for best in fitted.best],
            "constant, then 1 / (1 + lag), fitted": [(rate, rate, rate) for rate in fitted.fitted],
        }
        rows += (best := _law_rows(task, fitted, tried, areas))
        limited = any(at_end(row[3]) for row in best)
        claims += claims_of(task, fitted, limited, len(TUNING) + len(JUDGING))
    labels = {task: [str(lag) for lag in TASKS[task].rate_lags] for task in tasks}
    return _made(study, "rates", claims, rows, curves, labels, "data lag in batches", tasks)


def _areas(study: Study, task: str) -> tuple[list[str], np.ndarray]:
    """Learning rates, and areas `[lags, rates, seeds]`; rates are added until no lag's best is the outermost."""
    tried, seeds = list(FINE_RATES), range(TUNING.start, JUDGING.stop)
    while True:
        known = outcomes(at_rates(rate_places(task), tried), seeds, study)
        cells = [[place._replace(rate=rate) for rate in tried] for place in rate_places(task)]
        best = [max(row, key=lambda cell: mean_of(known[cell], area)).rate for row in cells]
        further = dict.fromkeys(rate for rate in (next_rate(tried, rate, LADDER) for rate in best) if rate is not None)
        if not further:
            return tried, np.array([[values(known[cell], area) for cell in row] for row in cells])
        tried = sorted({*tried, *further}, key=LADDER.index)


def _law_rows(task: str, fitted: Law, tried: Sequence[str], areas: np.ndarray) -> list[list[Any]]:
    """Rows of the table: best rates, whose interval is open at an end of the ladder, and the fits."""
    table = []
    for lag, best, seeds_of_rates in zip(TASKS[task].rate_lags, fitted.best, areas, strict=True):
        at = int(np.argmax(seeds_of_rates.mean(axis=1)))
        end = at_end(tried[at])
        low, high = (math.nan if end == "smallest" else best.low), (math.nan if end == "largest" else best.high)
        mean, half = mean_ci95(seeds_of_rates[at])
        table.append([task, PPO, lag, tried[at], *(_text(number)[0] for number in (best.value, low, high, mean, half))])
    for name in ("slope", "beyond", "bend", "crossover"):
        fit = getattr(fitted, name)
        table.append([task, name, "", "", *_text(fit.value, fit.low, fit.high), "", ""])
    return table


HEADERS = {
    "bounds": ("bound", ("fragments_dropped_slowness", "fragments_dropped_return")),
    "sync": ("sync_steps", ("data_lag", "data_lag_batches")),
    "corrections": ("lag", ("data_lag",)),
}
"""Name of the level, and data, of each figure whose table has a row for each place."""


def header(figure: str) -> list[str]:
    """Columns of a figure's table."""
    if figure == "rates":
        return ["env", "method", "lag", "rate", "best_rate", "low", "high", "area", "area_ci95"]
    measures = ["area_batches"] + (["area_seconds"] if figure != "corrections" else []) + ["final"]
    columns = [*measures, "seconds", "rolled", "dropped", *HEADERS[figure][1]]
    names = ["env", "method", HEADERS[figure][0], "rate", *(f"{c}{end}" for c in columns for end in ("", "_ci95"))]
    return names + (["equal_seconds", "evaluations", "evaluations_ci95"] if figure == "bounds" else [])


def _rows(judged: Judged, measures: Mapping[str, Measure], data: Sequence[str]) -> list[list[Any]]:
    """Rows of a table: mean and half of the 95 % interval of every column, over seeds."""
    columns: list[Measure] = [*measures.values()]
    columns += [] if final in columns else [final]
    columns += [lambda run: run.seconds[-1], lambda run: run.rolled, lambda run: run.dropped]
    columns += [partial(_datum, name) for name in data]
    return [
        [cell.task, cell.method, cell.level, runs[0].cell.rate]
        + [text for column in columns for text in _text(*mean_ci95(_known(values(runs, column))))]
        for cell, runs in judged.items()
    ]


def _datum(name: str, run: Outcome) -> float:
    return run.datum(name)


def _known(numbers: Iterable[float]) -> list[float]:
    """Finite numbers, or NaN if there is none."""
    return [number for number in numbers if math.isfinite(number)] or [math.nan]


def _text(*numbers: float) -> list[str]:
    return [f"{number:.6g}" if math.isfinite(number) else "" for number in numbers]


def _judged(study: Study, places: Iterable[Cell]) -> tuple[Judged, dict[tuple[str, str, int], Sequence[Outcome]]]:
    """Outcomes on the judging seeds at the best rates, by place, and by task, method and level."""
    judged = Chosen(study, COARSE_RATES, LADDER, TUNING, JUDGING).outcomes(places)
    return judged, {(cell.task, cell.method, cell.level): runs for cell, runs in judged.items()}


def _measures(judged: Judged) -> dict[str, Measure]:
    return {PER_BATCH: area, PER_SECOND: area_of_equal_seconds(judged), "final return": final}


def _more(text: str, ours: Sequence[Outcome], theirs: Sequence[Outcome], measure: Measure) -> Claim:
    """Claim about runs of the same seeds, by their differences."""
    return more(f"{text} (paired)", "–", values(ours, measure), values(theirs, measure), test=paired)


def _made(
    study: Study,
    figure: str,
    claims: list[Claim],
    rows: Sequence[Sequence[Any]],
    curves: Mapping[str, Mapping[str, pictures.Points]],
    labels: Mapping[str, Sequence[str]],
    axis: str,
    tasks: Sequence[str],
    joined: bool = True,
) -> list[Claim] | None:
    """Claims of a figure, with its table and picture written; None without tasks. Levels with an order are `joined`."""
    if not tasks:
        return None
    study.table(figure, header(figure), rows)
    measure = "best learning rate" if figure == "rates" else "share of the way to solved"
    title = (FIGURES[figure].__doc__ or "").strip().rstrip(".")
    pictures.panels(
        curves, labels, axis, measure, study.picture(figure), title, LADDER if figure == "rates" else (), joined
    )
    return claims


def requested(study: Study, asked: Sequence[str]) -> list[str]:
    """Requested tasks of those that a question is asked on.

    Raises ConfigError if the published figure has claims about other tasks, because claims are corrected together.
    """
    tasks = [task for task in asked if task in (study.envs or asked)]
    current = current_build()
    if tasks and current.published:
        claims = [claim.claim for claim in read_claims(current.claims)]
        current.check_envs((task for task in asked if any(text.startswith(task) for text in claims)), tasks)
    return tasks


FIGURES: dict[str, Figure] = {"bounds": bounds, "sync": sync, "corrections": corrections, "rates": rates}
ENVS = tuple(TASKS)
"""Tasks that may be requested."""
finish: Callable[[Path], None] = answers.write
"""Update of the page after a figure is made."""
