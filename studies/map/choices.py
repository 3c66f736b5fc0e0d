"""Choices on tuning seeds, confirmation on other seeds, and results in units that tasks share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np

from studies.builds import current_build
from studies.choices import next_rate
from studies.claims import Claim, read_claims
from studies.map.cells import COMBINED, CONFIRMING, LADDER, METHODS, SEQUENTIAL, TASKS, TUNING, Cell, grid, lag_cells
from studies.map.store import POINTS, Outcome, outcomes
from studies.study import Figure, Study

BASELINE = "async"
"""Method without any treatment of staleness."""
LEARNED, COLLAPSED = 0.3, 0.5
"""Thresholds of learning and collapse.

A run has learned once it reaches the first share of the way to solved. It has collapsed if it ends below the second
share of its best part.
"""
MAPPED = ("cartpole", "acrobot")
"""Tasks that every method is tried on."""
Outcomes = dict[Cell, list[Outcome]]
Measure = Callable[[Outcome], float]
K = TypeVar("K")
V = TypeVar("V")


def area(outcome: Outcome) -> float:
    """Area under the curve over gradients, as a share of the way to solved."""
    return TASKS[outcome.cell.task].share(outcome.auc)


def choosing(outcome: Outcome) -> float:
    """Mean over the parts of a run, which chooses learning rates: late parts may be shorter, and count as much."""
    return TASKS[outcome.cell.task].share(float(np.mean(outcome.returns)))


def final(outcome: Outcome) -> float:
    """Final return, as a share of the way to solved."""
    return TASKS[outcome.cell.task].share(outcome.final)


def area_until(outcome: Outcome, seconds: float) -> float:
    """Area under the curve over simulated seconds up to a limit; a run that ended before keeps its last value.

    The mean return of each part is placed at its middle.
    """
    task, ends = TASKS[outcome.cell.task], np.asarray(outcome.seconds)
    middles = (np.concatenate([[0.0], ends[:-1]]) + ends) / 2.0
    shares = [task.share(value) for value in outcome.returns]
    return float(np.mean(np.interp(np.linspace(0.0, seconds, 200), middles, shares)))


def area_for(outcome: Outcome, dollars: float) -> float:
    """Area under the curve up to a limit in dollars, which a run spends evenly over its seconds."""
    return area_until(outcome, dollars / outcome.cost_usd * outcome.seconds[-1])


def seconds_to(outcome: Outcome, share: float) -> float:
    """Simulated seconds at the end of the first part of a run whose mean return reaches a share of the way to solved.

    Infinite if no part does.
    """
    task, parts = TASKS[outcome.cell.task], zip(outcome.returns, outcome.seconds, strict=True)
    return next((end for value, end in parts if task.share(value) >= share), math.inf)


def at_equal_expense(known: Outcomes, cells: Mapping[str, Cell]) -> dict[str, Measure]:
    """Areas under the curve up to the expense of the cheapest run of all these cells."""
    seconds = min(outcome.seconds[-1] for cell in cells.values() for outcome in known[cell])
    dollars = min(outcome.cost_usd for cell in cells.values() for outcome in known[cell])
    return {
        "equal gradients": area,
        f"equal seconds ({seconds:.0f})": lambda outcome: area_until(outcome, seconds),
        f"equal dollars ({dollars:.2f})": lambda outcome: area_for(outcome, dollars),
    }


def by_expense(
    known: Outcomes, cells: Mapping[str, Cell], scales: Mapping[str, Measure]
) -> dict[str, list[tuple[str, list[float]]]]:
    """Rows of a picture: each method's rate and values on every scale.

    Args:
      known: outcomes of the cells.
      cells: a cell by method.
      scales: measures, as `at_equal_expense` returns them.
    """
    return {
        method: [(cell.rate, values(known, cell, measure)) for measure in scales.values()]
        for method, cell in cells.items()
    }


def collapse(outcome: Outcome) -> int | None:
    """Part of the run from which on it stays below `COLLAPSED` of its best part; None if it does not collapse.

    A run that never learned does not collapse.
    """
    shares = np.array([TASKS[outcome.cell.task].share(value) for value in outcome.returns])
    best = np.maximum.accumulate(shares)
    if best[-1] < LEARNED or np.mean(shares[-2:]) >= COLLAPSED * best[-1]:
        return None
    above = np.flatnonzero(shares >= COLLAPSED * best[-1])
    return int(above[-1]) + 1 if above[-1] + 1 < POINTS else None


@dataclass(frozen=True)
class TaskResults:
    """Results of one task of the map; missing cells are trained on demand.

    Args:
      results: directory of the files of outcomes.
      task: a key of `TASKS`.
      cells: cells that rates are chosen from; if empty, all of the map's without variation.
    """

    results: Path
    task: str
    cells: tuple[Cell, ...] = ()

    @cached_property
    def tuning(self) -> Outcomes:
        """Cells that rates are chosen from, on the tuning seeds."""
        return outcomes(self.cells or grid([self.task], METHODS), TUNING, self.results)

    @cached_property
    def combined(self) -> Outcomes:
        """Cells of `COMBINED`, on the tuning seeds."""
        return outcomes(grid([self.task], COMBINED), TUNING, self.results)

    @cached_property
    def lagged(self) -> Outcomes:
        """All cells of stale data, on the tuning seeds."""
        return outcomes(lag_cells(self.task), TUNING, self.results)

    def confirmed(self, cells: Iterable[Cell]) -> Outcomes:
        """Cells on the confirming seeds."""
        return outcomes(cells, CONFIRMING, self.results)

    def at(self, method: str, learners: int, rate: str, variation: str = "") -> Cell:
        """Cell of a method; with one learner, the common cell of all systems.

        Args:
          method: name of the method.
          learners: number of learners.
          rate: learning rate.
          variation: key of `VARIATIONS`.
        """
        return Cell(self.task, method if learners > 1 else SEQUENTIAL, learners, rate, variation)

    def all_rates(self, method: str, learners: int) -> list[Cell]:
        """Cells of a method at every learning rate."""
        return [self.at(method, learners, rate) for rate in TASKS[self.task].rates]

    def best_rate(self, method: str, learners: int) -> str:
        """Learning rate with the largest mean area under the curve on the tuning seeds."""
        return self.tuned(self.tuning, lambda rate: self.at(method, learners, rate)).rate

    def best_lagged(self, method: str, lag: str) -> Cell:
        """Cell of a method on stale data at its best rate there."""
        return self.tuned(self.lagged, lambda rate: Cell(self.task, method, 1, rate, lag))

    def tuned(self, known: Outcomes, at: Callable[[str], Cell]) -> Cell:
        """Cell at the best rate. While that is the outermost tried rate, further rates are tried.

        Args:
          known: cells on the tuning seeds; further cells are added.
          at: the cell at a rate.
        """
        tried = list(TASKS[self.task].rates)
        while True:
            best = max(map(at, tried), key=lambda cell: np.mean(values(known, cell, choosing)))
            further = next_rate(tried, best.rate, LADDER)
            if further is None:
                return best
            known.update(outcomes([at(further)], TUNING, self.results))
            tried.append(further)

    def best(self, method: str, learners: int, variation: str = "") -> Cell:
        """Cell of a method at its best rate."""
        return self.at(method, learners, self.best_rate(method, learners), variation)


def distinct(sides: Mapping[K, list[V]], *known: list[V]) -> dict[K, list[V]]:
    """Methods with distinct values: the first of bitwise equal ones, and none that equals one of `known`."""
    unique: dict[K, list[V]] = {}
    for method, side in sides.items():
        if side not in known and side not in unique.values():
            unique[method] = side
    return unique


def distinct_runs(runs: Iterable[Outcome]) -> list[Outcome]:
    """Distinct runs: the first of bitwise equal ones, whatever their methods are called."""
    return list({(run.cell._replace(method=""), run.seed, run.returns): run for run in reversed([*runs])}.values())[
        ::-1
    ]


def values(known: Outcomes, cell: Cell, measure: Measure) -> list[float]:
    """Measure of a cell, one value per seed."""
    return [measure(outcome) for outcome in known[cell]]


def mean_area(known: Outcomes, cells: Iterable[Cell]) -> list[float]:
    """Mean area under the curve over cells, one value per seed."""
    areas = np.mean([values(known, cell, area) for cell in cells], axis=0)
    return [float(value) for value in areas]


def requested_tasks(study: Study, tasks: Sequence[str]) -> list[str]:
    """Requested tasks of a figure.

    Raises ConfigError if the published figure has claims about other tasks. Claims of a figure are corrected together,
    so claims about fewer tasks cannot replace some of them.
    """
    requested = [task for task in study.envs or tasks if task in tasks]
    current = current_build()
    if requested and current.published:
        claims = [claim.claim for claim in read_claims(current.claims)]
        current.check_envs(
            (task for task in tasks if any(text.startswith((f"{task},", f"{task}:")) for text in claims)), requested
        )
    return requested


def each_task(figure: Callable[[Study, str], list[Claim]]) -> Figure:
    """Figure of all mapped tasks, from a function of one task; the figure returns None if no task is requested."""

    def figure_of_tasks(study: Study) -> list[Claim] | None:
        tasks = requested_tasks(study, MAPPED)
        return [claim for task in tasks for claim in figure(study, task)] if tasks else None

    figure_of_tasks.__doc__ = figure.__doc__
    return figure_of_tasks
