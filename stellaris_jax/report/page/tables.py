"""Tables of the page: results, differences to the best setting, interquartile means."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import numpy as np

from stellaris_jax.base.statistics import FEWEST
from stellaris_jax.report.page.markup import Cell, details, figure, interval_bar, link, paragraph, table, text, words
from stellaris_jax.report.results import BEST, Row, verdict
from stellaris_jax.report.robust import Scores, iqm_interval
from stellaris_jax.report.sweep import LEGEND, SIGNS, headings, row_cells, sweep_rows
from stellaris_jax.report.verdicts import Question, within
from stellaris_jax.telemetry.format import percent, significant


def results(rows: Sequence[Row], numbers: dict[str, int], out: Path, threshold: float | None) -> str:
    """Table of every setting's results.

    Args:
      rows: the settings.
      numbers: number of each setting on the page, by label.
      out: file of the page, which links are relative to.
      threshold: a return; the table then says what reaching it takes.
    """
    lines = []
    for row, values in zip(rows, sweep_rows(rows, threshold), strict=True):
        cells = row_cells(values, row, threshold)
        mark = SIGNS.get(row.mark, "")
        lines.append(
            [
                figure(str(numbers[row.label]), numbers[row.label]),
                Cell(f'<span class="best">{text(mark)}</span>' if row.mark == BEST else text(mark)),
                *map(words, headings(row.group).values()),
                *(figure(shown, value) for _, shown, value in cells),
                Cell(" ".join(link(relative(run.path, out), run.path.name) for run in row.group.runs)),
            ]
        )
    head = ["#", "", *headings(rows[0].group), *(heading for heading, _, _ in cells), "runs"]
    return table(head, lines, "results by setting; a click on a heading sorts") + _about(rows, threshold)


def _about(rows: Sequence[Row], threshold: float | None) -> str:
    about = paragraph(LEGEND[1]) if any(row.mark for row in rows) else ""
    meaning = details("Meaning of the columns", paragraph(LEGEND[0]))
    if threshold is None:
        return about + meaning
    reached = [row for row in rows if row.reached(threshold)]
    explanation = (
        f"Steps, seconds and dollars until a return of {significant(threshold)}: medians over seeds of the first "
        "evaluation that reaches it. A dash means that at least half of the seeds never do, or that there is no result."
    )
    return about + meaning + paragraph(explanation, "" if reached else "No seed of any setting has ever reached it.")


def relative(path: Path, out: Path) -> str:
    """Address of a directory, relative to the page `out`."""
    return quote(os.path.relpath(path.resolve(), out.resolve().parent).replace(os.sep, "/")) + "/"


def differences(rows: Sequence[Row], numbers: dict[str, int], question: Question) -> str:
    """Table of the differences between the reference and each other row; with a margin, whether each is within it.

    Args:
      rows: settings, as `Question.judged` returns them.
      numbers: number of each setting on the page, by label.
      question: what is asked.
    """
    margin = question.margin
    compared = [(row, question.shown(row.comparison)) for row in rows if row.comparison is not None]
    if not compared:
        return ""
    ends = [end for _, gap in compared for end in (gap.mean, gap.low, gap.high, question.nothing) if np.isfinite(end)]
    span = (min(ends), max(ends))
    lines = []
    for row, gap in compared:
        known = np.isfinite(gap.low)
        ends_shown = f"{significant(gap.low)} to {significant(gap.high)}" if known else "–"
        ends_shown += " (range)" if known and not gap.enough else ""
        bar = interval_bar(gap.mean, gap.low, gap.high, span, zero=not question.measure.is_time)
        lines.append(
            [
                figure(str(numbers[row.label]), numbers[row.label]),
                Cell(f'<span class="long">{text(row.label)}</span>'),
                words(verdict(row)),
                figure(significant(gap.mean), gap.mean),
                Cell(ends_shown, gap.low if known else None),
                Cell(bar, gap.mean),
                figure(str(gap.pairs) if gap.pairs else "none", gap.pairs),
                figure(percent(gap.improvement), gap.improvement),
                figure(significant(row.p_holm, 2), row.p_holm),
                *([] if margin is None or row.comparison is None else [words(within(row.comparison, margin))]),
            ]
        )
    better = f"P({question.reference} better)"
    head = ["#", "setting", "it is", question.gap, "95 % interval", "", "shared seeds", better, "p (Holm)"]
    head += [] if margin is None else [f"within {margin:g}"]
    tested = int(np.isfinite([gap.p for _, gap in compared]).sum())
    reading = paragraph(
        f"Each line compares the {question.reference} setting (of its environment) with this one, over the seeds that "
        "both have: what a seed does to both cancels out.",
        question.about,
        question.reading,
    )
    chosen = f" {question.chosen}" if question.chosen else ""
    method = paragraph(
        "The interval is a bootstrap over these differences, widened for their small number; "
        f"of fewer than {FEWEST} it is their range. Where fewer than two seeds are shared, Welch's interval of all "
        "seeds stands in its place.",
        f"{better} is the chance that a run of the {question.reference} setting beats one of this; 50 % is a coin.",
        f"The p-values are of Student's paired test (Welch's without shared seeds), by Holm's correction for {tested} "
        f"comparison{'s' * (tested != 1)}.{chosen}",
    )
    return (
        table(head, lines, f"differences to the {question.reference} setting")
        + reading
        + details("How it is computed", method)
    )


class Scored(NamedTuple):
    """Setting with its scores.

    Attributes:
      number: number of the setting on the page.
      name: name of the setting on the page.
      scores: one sample of runs per task.
    """

    number: int
    name: str
    scores: Scores


def bars(scored: Sequence[Scored]) -> str:
    """Table of interquartile means with bars of their intervals."""
    every = np.concatenate([np.ravel(task) for row in scored for task in row.scores])
    span = (float(every.min()), float(every.max()))
    lines = []
    for row in scored:
        runs = np.concatenate([np.ravel(task) for task in row.scores])
        value, low, high = iqm_interval(row.scores)
        few = f"{significant(runs.min())} to {significant(runs.max())} (range)" if len(runs) > 1 else "one seed"
        shown = f"{significant(low)} to {significant(high)}" if np.isfinite(low) else few
        lines.append(
            [
                figure(str(row.number), row.number),
                Cell(f'<span class="long">{text(row.name)}</span>'),
                figure(significant(value), value),
                Cell(text(shown), low if np.isfinite(low) else None),
                Cell(interval_bar(value, low, high, span, runs.tolist()), value),
            ]
        )
    where = f"{significant(span[0])} … {significant(span[1])}"
    return table(["#", "setting", "IQM", "95 % interval", where], lines, "interquartile means with intervals")


def across(by_env: Mapping[str, Sequence[Row]]) -> list[Scored]:
    """Settings with results in every environment; returns are scaled in each: 0 is the lowest, 1 the highest."""
    scored: dict[str, list[list[float]]] = {}
    for rows in by_env.values():
        every = [value for row in rows for value in row.finals]
        low = min(every, default=0.0)
        width = (max(every, default=1.0) - low) or 1.0
        for row in rows:
            if row.finals:
                scored.setdefault(row.setting, []).append([(value - low) / width for value in row.finals])
    complete = [(name, tasks) for name, tasks in scored.items() if len(tasks) == len(by_env)]
    return [Scored(number, name, tasks) for number, (name, tasks) in enumerate(complete, start=1)]
