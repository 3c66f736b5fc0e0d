"""The map's pictures and what they say, with intervals: `scripts/reproduce.py map`."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from stellaris_jax.reproduce.claims import Claim, more
from stellaris_jax.reproduce.map import pictures
from stellaris_jax.reproduce.map.cells import CONFIRMING, LEARNERS, METHODS, RATES, TASKS, TUNING, Cell, grid
from stellaris_jax.reproduce.map.store import Outcome, outcomes
from stellaris_jax.reproduce.study import Figure, Study

ENVS = list(TASKS)
NOTHING = "async"
"""The method that does nothing about staleness."""
SEQUENTIAL = "all-reduce"
"""What stands for all methods where there is one learner."""

Found = dict[Cell, list[Outcome]]


def at(method: str, task: str, learners: int, rate: str) -> Cell:
    """The cell of a method, which with one learner is everybody's."""
    return Cell(task, method if learners > 1 else SEQUENTIAL, learners, rate)


def best_rate(method: str, task: str, learners: int, tuning: Found) -> str:
    """The learning rate of the largest area under the curve, on the seeds for that."""

    def area(rate: str) -> float:
        return float(np.mean([one.auc for one in tuning[at(method, task, learners, rate)]]))

    return max(RATES, key=area)


def finals(found: Found, cell: Cell) -> list[float]:
    """Final returns of a cell, one per seed, as shares of the way to what counts as solved."""
    return [TASKS[cell.task].share(one.final) for one in found[cell]]


def areas(found: Found, cell: Cell) -> list[float]:
    """Areas under the curve of a cell, in the same unit."""
    return [TASKS[cell.task].share(one.auc) for one in found[cell]]


def trained(study: Study, tasks: Iterable[str]) -> tuple[Found, Found]:
    """All cells of tasks, on the seeds that are tuned on and on those that confirm."""
    cells = grid(tasks)
    return outcomes(cells, TUNING, study.results), outcomes(cells, CONFIRMING, study.results)


def learners(study: Study) -> list[Claim]:
    """By learners: each method at the rate that is best for it there, on other seeds."""
    claims = []
    for task in study.envs or ENVS:
        tuning, confirming = trained(study, [task])

        def best(method: str, count: int, task: str = task, tuning: Found = tuning) -> Cell:
            return at(method, task, count, best_rate(method, task, count, tuning))

        for measure, what in ((areas, "area under the curve"), (finals, "final return")):
            rows = {
                method: [(best(method, count).rate, measure(confirming, best(method, count))) for count in LEARNERS]
                for method in METHODS
            }
            picture = study.results / f"figure_learners_{task}_{measure.__name__}.png"
            title = f"{task}: {what} by learners, each method at its best rate"
            pictures.heat(rows, [str(count) for count in LEARNERS], "learners", picture, title)
        for count in LEARNERS[1:]:
            base = areas(confirming, best(NOTHING, count))
            for method in METHODS:
                if method != NOTHING:
                    text = f"{task}, {count} learners: {method} learns more than async, each at its best rate"
                    claims.append(more(text, "–", areas(confirming, best(method, count)), base))
    return claims


def rates(study: Study) -> list[Claim]:
    """By learning rate: whether the synchronous trainer's best rate is anybody else's, and who bears a higher one."""
    claims = []
    for task in study.envs or ENVS:
        tuning, confirming = trained(study, [task])
        for count in LEARNERS[1:]:
            rows = {
                method: [("", areas(confirming, at(method, task, count, rate))) for rate in RATES] for method in METHODS
            }
            picture = study.results / f"figure_rates_{task}_{count}.png"
            title = f"{task}: area under the curve by learning rate, {count} learners"
            pictures.heat(rows, list(RATES), "learning rate", picture, title)
        sequential = best_rate(SEQUENTIAL, task, 1, tuning)
        for count in LEARNERS[1:]:
            for method in METHODS:
                own = best_rate(method, task, count, tuning)
                if own != sequential:
                    text = (
                        f"{task}, {count} learners: {method} learns more at {own} than at the sequential {sequential}"
                    )
                    theirs = areas(confirming, at(method, task, count, sequential))
                    claims.append(more(text, "–", areas(confirming, at(method, task, count, own)), theirs))
    return claims


FIGURES: dict[str, Figure] = {"learners": learners, "rates": rates}
