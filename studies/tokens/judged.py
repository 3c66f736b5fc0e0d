"""Outcomes of questions on the judging seeds, with their tables and pictures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stellaris_jax.base.statistics import mean_ci95
from stellaris_jax.report.curves import BLACK, BLUE, GREEN, ORANGE, PINK, SKY, VERMILION
from studies import panels
from studies.choices import Chosen, Measure, area, final, values
from studies.outcomes import Outcome
from studies.study import Study
from studies.tokens.cells import (
    CLIP,
    DECOUPLED,
    GSPO,
    ICEPOP,
    JUDGING,
    LADDER,
    M2PO,
    NONE,
    RATES,
    TIS,
    TUNING,
    Cell,
    places,
)
from studies.tokens.measures import GOALS, collapsed, fall, reached, seconds_to, updates_to

MEANS: dict[str, Measure] = {"area": area, "final": final, "fall": fall}
"""Columns with the mean and half of the 95 % interval."""
MEDIANS: dict[str, Callable[[Outcome, float], float]] = {"updates": updates_to, "seconds": seconds_to}
"""Columns with the median way to each of `GOALS`, empty where no more than half of the seeds arrive."""
COLOURS = {NONE: BLACK, CLIP: BLUE, TIS: GREEN, DECOUPLED: VERMILION, GSPO: PINK, M2PO: ORANGE, ICEPOP: SKY}
"""Colours of methods, in all pictures alike."""
HEADER = (
    "env", "method", "lag", "rate",
    *(f"{name}{end}" for name in MEANS for end in ("", "_ci95")),
    *(f"{name}_to_{goal:.0%}".rstrip("%") for goal in GOALS for name in (*MEDIANS, "seeds")),
    "collapsed",
)  # fmt: skip


class Judged:
    """Outcomes of questions on the judging seeds, each place at its best learning rate.

    Args:
      study: directories of the outcomes.
      questions: the questions.
    """

    def __init__(self, study: Study, *questions: str):
        wanted = [place for question in questions for place in places(question)]
        chosen = Chosen(study, RATES, LADDER, TUNING, JUDGING)
        self.runs = chosen.outcomes([place for place in wanted if study.envs is None or place.task in study.envs])
        self.tuning = chosen.tuning

    @property
    def tasks(self) -> list[str]:
        """Tasks that are asked for."""
        return list(dict.fromkeys(cell.task for cell in self.runs))

    def at(self, question: str, task: str, method: str, level: int) -> list[Outcome]:
        """Outcomes of a place, of its best learning rate."""
        return self.runs[Cell(question, task, method, level, "")]

    def table(self, study: Study, figure: str, question: str) -> None:
        """Write the table of a question's places."""
        study.table(figure, HEADER, [row(runs) for cell, runs in self.runs.items() if cell.question == question])

    def draw(self, study: Study, figure: str, question: str, axis: str, title: str, fresh: str = "") -> None:
        """Draw a question's shares of right completions by level, a panel for each task of at most six methods.

        Args:
          study: directories.
          figure: name of the picture.
          question: the question.
          axis: name of the levels.
          title: title of the picture.
          fresh: question whose PPO's clip on fresh completions is subtracted, seed by seed, from shares over the whole
            run; by default the shares at the end are drawn.
        """
        curves: dict[str, dict[str, panels.Points]] = {}
        ticks: dict[str, list[str]] = {}
        for task in self.tasks:
            cells = [cell for cell in self.runs if (cell.question, cell.task) == (question, task)]
            names = list(dict.fromkeys(cell.method for cell in cells))
            levels = list(dict.fromkeys(cell.level for cell in cells))
            parts = [names[begin :: -(-len(names) // 6)] for begin in range(-(-len(names) // 6))]
            for number, part in enumerate(parts, 1):
                panel = task if len(parts) == 1 else f"{task}, {number} of {len(parts)}"
                base = values(self.at(fresh, task, CLIP, 0), area) if fresh else []
                curves[panel] = {
                    name: panels.intervals([self._drawn(question, task, name, level, base) for level in levels])
                    for name in part
                }
                ticks[panel] = [str(level) for level in levels]
        measure, possible = ("difference in share right", (-1.0, 1.0)) if fresh else ("share right", (0.0, 1.0))
        panels.panels(curves, ticks, axis, measure, study.picture(figure), title, possible=possible, colours=COLOURS)

    def _drawn(self, question: str, task: str, name: str, level: int, base: Sequence[float]) -> list[float]:
        """Values of a place: shares at the end, or over the run less those of the base, by seed."""
        runs = self.at(question, task, name, level)
        return (
            [own - other for own, other in zip(values(runs, area), base, strict=True)] if base else values(runs, final)
        )


def row(runs: Sequence[Outcome]) -> list[Any]:
    """Row of a table: a place's means and medians over its runs, by `HEADER`."""
    numbers = [number for measure in MEANS.values() for number in mean_ci95(values(runs, measure))]
    for goal in GOALS:
        numbers += [float(np.median([way(run, goal) for run in runs])) for way in MEDIANS.values()]
        numbers.append(sum(reached(run, goal) is not None for run in runs))
    cell = runs[0].cell
    texts = [f"{number:.6g}" if np.isfinite(number) else "" for number in numbers]
    return [cell.task, cell.method, cell.level, cell.rate, *texts, collapsed(runs)]
