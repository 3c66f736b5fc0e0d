"""Figure of the study and its claims: `scripts/reproduce.py tokens`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stellaris_jax.base.statistics import mean_ci95, paired
from studies import panels
from studies.choices import Chosen, Measure, area, final, values
from studies.claims import Claim, more
from studies.outcomes import Outcome
from studies.study import Figure, Study
from studies.tokens.cells import CLIP, JUDGING, LADDER, LEVELS, METHODS, NONE, RATES, STEPS, TUNING, places

ENVS = tuple(STEPS)
COLUMNS: dict[str, Measure] = {"area": area, "final": final, "fall": lambda run: fall(run)}
HEADER = ("env", "method", "lag", "rate", *(f"{name}{end}" for name in COLUMNS for end in ("", "_ci95")), "collapsed")
COLLAPSED = 0.5
"""Share of the best evaluation that a collapsed run ends below."""


def fall(run: Outcome) -> float:
    """Loss from the best evaluation to the end, in shares of right completions."""
    return max(run.returns) - run.final


def collapsed(runs: Sequence[Outcome]) -> int:
    """Number of runs that end below `COLLAPSED` of their best evaluation."""
    return sum(run.final < COLLAPSED * max(run.returns) for run in runs)


def methods(study: Study) -> list[Claim] | None:
    """Corrections on completions of exactly so many updates ago, each at its best learning rate."""
    claims: list[Claim] = []
    rows: list[list[Any]] = []
    curves: dict[str, dict[str, panels.Points]] = {}
    for task in (tasks := [name for name in ENVS if name in (study.envs or ENVS)]):
        judged = Chosen(study, RATES, LADDER, TUNING, JUDGING).outcomes(places(task))
        at = {(cell.method, cell.level): runs for cell, runs in judged.items()}
        for half in range(2):
            names = list(METHODS)[half::2]
            curves[f"{task}, {half + 1} of 2"] = {
                name: panels.intervals([values(at[name, level], final) for level in LEVELS]) for name in names
            }
        rows += [_row(runs) for runs in judged.values()]
        claims += [
            _more(f"{task}: {method} learns more from fresh completions than from those {level} updates old",
                  at[method, 0], at[method, level])
            for method in METHODS for level in LEVELS[1:]
        ]  # fmt: skip
        claims += [
            _more(f"{task}, {level} updates old: {method} learns more than {other}",
                  at[method, level], at[other, level])
            for other in (NONE, CLIP) for method in METHODS if method not in (NONE, other) for level in LEVELS[1:]
        ]  # fmt: skip
    if not tasks:
        return None
    study.table("methods", HEADER, rows)
    title = "Share of right completions at the end, each method at its best learning rate"
    ticks = {key: [str(level) for level in LEVELS] for key in curves}
    panels.panels(curves, ticks, "updates that completions are old", "share right", study.picture("methods"), title)
    return claims


def _row(runs: Sequence[Outcome]) -> list[Any]:
    numbers = [number for measure in COLUMNS.values() for number in mean_ci95(values(runs, measure))]
    cell = runs[0].cell
    texts = [f"{number:.4g}" if np.isfinite(number) else "" for number in numbers]
    return [cell.task, cell.method, cell.level, cell.rate, *texts, collapsed(runs)]


def _more(text: str, ours: Sequence[Outcome], theirs: Sequence[Outcome]) -> Claim:
    """Claim about areas under learning curves of the same seeds, by their differences."""
    return more(f"{text} (paired)", "–", values(ours, area), values(theirs, area), test=paired)


FIGURES: dict[str, Figure] = {"methods": methods}
