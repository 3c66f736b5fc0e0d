"""What is chosen on some seeds and judged on others, and what runs come to, in units that tasks share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np

from stellaris_jax.reproduce.claims import Claim, read_claims
from stellaris_jax.reproduce.making import under_way
from stellaris_jax.reproduce.map.cells import (
    COMBINED,
    CONFIRMING,
    LADDER,
    METHODS,
    SEQUENTIAL,
    TASKS,
    TUNING,
    Cell,
    grid,
    lags,
)
from stellaris_jax.reproduce.map.store import POINTS, Outcome, outcomes
from stellaris_jax.reproduce.study import Figure, Study

BASELINE = "async"
"""The method that does nothing about staleness."""
LEARNED, FALLEN = 0.3, 0.5
"""A run has learned something that once came so far to what counts as solved, and has collapsed if it ends below this
share of its best part."""
MAPPED = ("cartpole", "acrobot")
"""Tasks that every method is tried on."""
Found = dict[Cell, list[Outcome]]
Measure = Callable[[Outcome], float]
K = TypeVar("K")
V = TypeVar("V")


def area(one: Outcome) -> float:
    """Area under the curve over gradients, as a share of the way to what counts as solved."""
    return TASKS[one.cell.task].share(one.auc)


def final(one: Outcome) -> float:
    """Final return, in the same unit."""
    return TASKS[one.cell.task].share(one.final)


def area_until(one: Outcome, seconds: float) -> float:
    """Area under the curve over simulated seconds up to so many; a run that ended before stays where it was.

    Each part's mean return stands in its middle.
    """
    task, ends = TASKS[one.cell.task], np.asarray(one.seconds)
    middles = (np.concatenate([[0.0], ends[:-1]]) + ends) / 2.0
    shares = [task.share(value) for value in one.returns]
    return float(np.mean(np.interp(np.linspace(0.0, seconds, 200), middles, shares)))


def area_for(one: Outcome, dollars: float) -> float:
    """The same over dollars, which a run spends evenly over its seconds."""
    return area_until(one, dollars / one.cost_usd * one.seconds[-1])


def seconds_to(one: Outcome, share: float) -> float:
    """Simulated seconds at the end of the first part of a run whose mean return is so far on the way to what counts as
    solved; infinitely many where none is."""
    task, parts = TASKS[one.cell.task], zip(one.returns, one.seconds, strict=True)
    return next((end for value, end in parts if task.share(value) >= share), math.inf)


def at_equal_expense(found: Found, cells: Mapping[str, Cell]) -> dict[str, Measure]:
    """Areas under the curve up to what the cheapest run of all these cells has cost."""
    seconds = min(one.seconds[-1] for cell in cells.values() for one in found[cell])
    dollars = min(one.cost_usd for cell in cells.values() for one in found[cell])
    return {
        "equal gradients": area,
        f"equal seconds ({seconds:.0f})": lambda one: area_until(one, seconds),
        f"equal dollars ({dollars:.2f})": lambda one: area_for(one, dollars),
    }


def by_expense(
    found: Found, cells: Mapping[str, Cell], scales: Mapping[str, Measure]
) -> dict[str, list[tuple[str, list[float]]]]:
    """Rows for a picture: of each method its rate and its values on every scale."""
    return {
        method: [(cell.rate, values(found, cell, measure)) for measure in scales.values()]
        for method, cell in cells.items()
    }


def collapse(one: Outcome) -> int | None:
    """The part of the run from which on it stayed below `FALLEN` of its best part before; None if it did not collapse.

    What never learned has not collapsed.
    """
    shares = np.array([TASKS[one.cell.task].share(value) for value in one.returns])
    best = np.maximum.accumulate(shares)
    if best[-1] < LEARNED or np.mean(shares[-2:]) >= FALLEN * best[-1]:
        return None
    above = np.flatnonzero(shares >= FALLEN * best[-1])
    return int(above[-1]) + 1 if above[-1] + 1 < POINTS else None


@dataclass(frozen=True)
class TaskResults:
    """One task of the map, as far as it is asked for; cells that are missing are trained.

    Args:
      results: where the files of outcomes are.
      task: a key of `TASKS`.
      cells: those that rates are chosen from; all of the map's without variation if there are none.
    """

    results: Path
    task: str
    cells: tuple[Cell, ...] = ()

    @cached_property
    def tuning(self) -> Found:
        """The cells that rates are chosen from, on the seeds for that."""
        return outcomes(self.cells or grid([self.task], METHODS), TUNING, self.results)

    @cached_property
    def combined(self) -> Found:
        """The cells of `COMBINED`, on the same seeds."""
        return outcomes(grid([self.task], COMBINED), TUNING, self.results)

    @cached_property
    def lagged(self) -> Found:
        """All cells of stale data, on the same seeds."""
        return outcomes(lags(self.task), TUNING, self.results)

    def confirmed(self, cells: Iterable[Cell]) -> Found:
        """Cells on the seeds that confirm."""
        return outcomes(cells, CONFIRMING, self.results)

    def at(self, method: str, learners: int, rate: str, variation: str = "") -> Cell:
        """The cell of a method, which with one learner is every system's."""
        return Cell(self.task, method if learners > 1 else SEQUENTIAL, learners, rate, variation)

    def all_rates(self, method: str, learners: int) -> list[Cell]:
        """A method's cells at every learning rate."""
        return [self.at(method, learners, rate) for rate in TASKS[self.task].rates]

    def best_rate(self, method: str, learners: int) -> str:
        """The learning rate of the largest mean area under the curve on the seeds for that."""
        return self.tuned(self.tuning, lambda rate: self.at(method, learners, rate)).rate

    def best_lagged(self, method: str, lag: str) -> Cell:
        """A method's cell of stale data at the rate that is best for it there."""
        return self.tuned(self.lagged, lambda rate: Cell(self.task, method, 1, rate, lag))

    def tuned(self, known: Found, at: Callable[[str], Cell]) -> Cell:
        """The cell at the best rate; where that is the outermost tried, further ones are tried until it is not.

        Args:
          known: cells on the seeds for tuning, to which such are added.
          at: the cell at a rate.
        """
        tried = list(TASKS[self.task].rates)
        while True:
            best = max(map(at, tried), key=lambda cell: np.mean(values(known, cell, area)))
            further = outward(tried, best.rate)
            if further is None:
                return best
            known.update(outcomes([at(further)], TUNING, self.results))
            tried.append(further)

    def best(self, method: str, learners: int, variation: str = "") -> Cell:
        """A method's cell at that rate."""
        return self.at(method, learners, self.best_rate(method, learners), variation)


def outward(tried: Iterable[str], rate: str) -> str | None:
    """The rate beyond one of those tried if it is the outermost of them, and there is one.

    >>> outward(["1e-3", "3e-3"], "1e-3"), outward(["3e-4", "1e-3", "3e-3"], "1e-3"), outward(["1e-5", "3e-5"], "1e-5")
    ('3e-4', None, None)
    """
    place, places = LADDER.index(rate), [LADDER.index(one) for one in tried]
    if place == min(places):
        return LADDER[place - 1] if place > 0 else None
    return LADDER[place + 1] if place == max(places) and place + 1 < len(LADDER) else None


def distinct(sides: Mapping[K, list[V]], *known: list[V]) -> dict[K, list[V]]:
    """Of methods whose values are the same to the bit the first; none that is the same as one of `known`."""
    found: dict[K, list[V]] = {}
    for method, side in sides.items():
        if side not in known and side not in found.values():
            found[method] = side
    return found


def distinct_runs(runs: Iterable[Outcome]) -> list[Outcome]:
    """Of runs that are the same whatever their method is called the first."""
    return list({(one.cell._replace(method=""), one.seed, one.returns): one for one in reversed([*runs])}.values())[
        ::-1
    ]


def values(found: Found, cell: Cell, measure: Measure) -> list[float]:
    """A measure of a cell, one value per seed."""
    return [measure(one) for one in found[cell]]


def mean_area(found: Found, cells: Iterable[Cell]) -> list[float]:
    """The mean area under the curve over cells, one value per seed."""
    areas = np.mean([values(found, cell, area) for cell in cells], axis=0)
    return [float(one) for one in areas]


def asked(study: Study, tasks: Sequence[str]) -> list[str]:
    """Tasks of a figure that are asked for.

    Raises ConfigError where the published figure claims something of another one: claims of a figure are corrected
    together, so those of a task alone are no part of it.
    """
    wanted = [task for task in study.envs or tasks if task in tasks]
    one = under_way()
    if wanted and one.published:
        claims = [claim.claim for claim in read_claims(one.claims)]
        one.check_envs(
            (task for task in tasks if any(text.startswith((f"{task},", f"{task}:")) for text in claims)), wanted
        )
    return wanted


def each_task(figure: Callable[[Study, str], list[Claim]]) -> Figure:
    """A figure of all tasks that every method is tried on, of a function of one; nothing where none is asked for."""

    def made(study: Study) -> list[Claim] | None:
        tasks = asked(study, MAPPED)
        return [claim for task in tasks for claim in figure(study, task)] if tasks else None

    made.__doc__ = figure.__doc__
    return made
