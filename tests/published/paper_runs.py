"""Evaluations of the runs that reproduce papers, and the measures that their pages take of them."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from published.files import table

TASKS = ("hopper", "humanoid", "walker2d")
COLUMNS = ("env", "series", "seed", "seconds", "cost_usd", "returns")
SLACK = 1 + 1e-9
"""Rounding of sums of seconds and dollars that counts as none."""


class Evaluation(NamedTuple):
    """One evaluation of a run: what it took until then, and the return."""

    seconds: float
    cost_usd: float
    returns: float


Runs = Sequence[Sequence[Evaluation]]


@functools.cache
def _figure(name: str) -> dict[tuple[str, str], list[list[Evaluation]]]:
    """Runs of a figure by task and series, in the order of their seeds."""
    found: dict[tuple[str, str], dict[int, list[Evaluation]]] = defaultdict(lambda: defaultdict(list))
    for line in table(f"{name}.csv", *COLUMNS):
        numbers = (float(line[column]) for column in Evaluation._fields)
        found[line["env"], line["series"]][int(line["seed"])].append(Evaluation(*numbers))
    return {place: [by_seed[seed] for seed in sorted(by_seed)] for place, by_seed in found.items()}


def series(name: str) -> list[tuple[str, str]]:
    """Tasks and series of a figure."""
    return list(_figure(name))


def runs(name: str, task: str, which: str) -> Runs:
    """Runs of one series of a figure, one for each seed."""
    return _figure(name)[task, which]


def _last_fifth(run: Sequence[Evaluation]) -> float:
    kept = max(1, round(len(run) / 5))
    return float(np.mean([evaluation.returns for evaluation in run[-kept:]]))


def final(several: Runs) -> list[float]:
    """Final returns: means of the last fifth of the evaluations."""
    return [_last_fifth(run) for run in several]


def total(several: Runs, expense: str) -> float:
    """Mean seconds or dollars of whole runs."""
    return float(np.mean([getattr(run[-1], expense) for run in several]))


def final_for_equal(ours: Runs, theirs: Runs, expense: str) -> tuple[list[float], list[float]]:
    """Final returns of what both have had time, or dollars, for: as much as the cheaper ones take on average."""
    limit = min(total(ours, expense), total(theirs, expense)) * SLACK
    ours_until, theirs_until = (
        [[evaluation for evaluation in run if getattr(evaluation, expense) <= limit] for run in several]
        for several in (ours, theirs)
    )
    return final(ours_until), final(theirs_until)


def expense_to(several: Runs, expense: str, target: float) -> list[float]:
    """Seconds or dollars until three evaluations in a row have a mean of the target; infinite if they never have."""
    found = []
    for run in several:
        means = np.convolve([evaluation.returns for evaluation in run], np.ones(3) / 3, mode="valid")
        reached = np.flatnonzero(means >= target - 1e-9)
        found.append(getattr(run[reached[0] + 2], expense) if len(reached) else np.inf)
    return found
