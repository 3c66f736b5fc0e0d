"""Results of a setting's seeds, and comparison of the settings with the best one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from stellaris_jax.base.statistics import Curve, holm
from stellaris_jax.report.robust import Difference, paired_difference, unpaired_difference
from stellaris_jax.report.runs import LEARNED, Group, Run, at_seed, read_run, seed_curves
from stellaris_jax.telemetry.jsonl import warn_on_stderr

CLOCKS = ("env_steps", LEARNED, "simulated_seconds", "wall_seconds", "cost_usd")
"""Axes that a curve can be drawn over, and that a threshold is timed on."""
MEASURES = ("staleness_mean", "staleness_max", "steps_per_second", "simulated_seconds", "cost_usd", "updates")
"""Summary values of a table, each the mean over a setting's runs (staleness_max: their maximum)."""
BEST, TIED, OPEN, FEW = "best", "tied", "open", "few"
"""Marks of rows.

BEST: significantly better than all others of its environment. TIED: not significantly different from the row of the
highest mean, or that row itself. OPEN: different, but not after Holm's correction. FEW: too few seeds to tell.
"""


class Measure(NamedTuple):
    """Measure of a seed, by which settings are compared.

    Attributes:
      name: LAST's, AREA's, or one of CLOCKS.
      threshold: return that the clock is read at; None for returns themselves.
    """

    name: str
    threshold: float | None = None

    @property
    def is_time(self) -> bool:
        """Whether it is the way to a return: little is good, and settings are compared by ratios."""
        return self.threshold is not None

    def of(self, seed: SeedResult) -> float:
        """Value of a seed: more is better. The logarithm of a clock with a minus; NaN for a seed that lacks it."""
        if self.threshold is None:
            return seed.area if self == AREA else seed.final
        way = seed.until(self.name, self.threshold) if seed.has_own(self.name) else math.nan
        return -math.log(way) if math.isfinite(way) and way > 0 else math.nan


LAST, AREA = Measure("last"), Measure("mean")
"""Measures of returns: that of the last evaluation, and the mean over the run."""
LEVEL = 0.05
RATE = "algorithm.learning_rate"
"""Key of the learning rate."""
ENV = "env.name"
"""Key of the environment; rows of different environments are not compared."""


@dataclass(frozen=True)
class SeedResult:
    """Result of one seed.

    Attributes:
      seed: the seed.
      run: its run.
      final: return of the last evaluation.
      area: mean return between the first evaluation and the last one, over env steps (area under the curve, by
        trapezoids, divided by the steps); NaN if metrics are missing.
      curves: evaluated returns by clock; empty if metrics are missing.
    """

    seed: int
    run: Run
    final: float
    area: float
    curves: dict[str, Curve]

    def has_own(self, clock: str) -> bool:
        """Whether a clock is the seed's; runs of earlier versions have only the mean of some over their seeds."""
        rows, shared = self.run.evaluations, ("env_steps", LEARNED)
        return (
            clock in shared
            or not rows
            or len(rows[-1]["per_seed"]["eval_return_mean"]) == 1
            or all(clock in row["per_seed"] for row in rows)
        )

    def spent(self, clock: str) -> float:
        """Value of a clock at the last evaluation; NaN without a curve, or a clock of its own."""
        x = self.curves[clock][0] if self.curves and self.has_own(clock) else np.empty(0)
        return float(x[-1]) if len(x) else math.nan

    def until(self, clock: str, threshold: float) -> float:
        """Value of a clock at the first evaluation of at least `threshold`; infinite if there is none, NaN without a
        curve.
        """
        if not self.curves:
            return math.nan
        x, y = self.curves[clock]
        reached = np.flatnonzero(y >= threshold)
        return float(x[reached[0]]) if len(reached) else math.inf


@dataclass(frozen=True)
class Row:
    """One setting: runs that differ in their seeds alone.

    Attributes:
      group: the runs.
      seeds: results by seed. A seed that was run twice counts once.
      comparison: difference from the best row of the same environment, or another reference, to this one; None for that
        row itself, rows without results, and a row that is alone.
      p_holm: p-value of the comparison after Holm's correction for all comparisons; NaN if nothing was tested.
      mark: one of BEST, TIED, OPEN and FEW, or "".
      is_top: whether others are compared with this row. `compare_settings` takes that of the highest mean return; ties
        are broken by the larger area, then by fewer simulated seconds.
    """

    group: Group
    seeds: dict[int, SeedResult] = field(default_factory=dict)
    comparison: Difference | None = None
    p_holm: float = math.nan
    mark: str = ""
    is_top: bool = False

    @property
    def label(self) -> str:
        return self.group.label

    @property
    def env(self) -> str:
        """Name of the environment; rows of different environments are not compared."""
        return str(self.group.runs[0].config.get(ENV, ""))

    @property
    def setting(self) -> str:
        """Label without the environment."""
        values = {key: value for key, value in self.group.values.items() if key != ENV}
        return Group(values, self.group.runs).label

    @property
    def finals(self) -> list[float]:
        """Final return of every seed."""
        return [seed.final for seed in self.seeds.values()]

    def measured(self, measure: Measure) -> list[float]:
        """Value of a measure of every seed; empty if one of them lacks it."""
        values = list(map(measure.of, self.seeds.values()))
        return [] if any(map(math.isnan, values)) else values

    @property
    def finished(self) -> list[Run]:
        """Runs that have a result."""
        return [run for run in self.group.runs if run.summary is not None]

    @property
    def incomplete(self) -> list[Run]:
        """Runs whose result is lost by damage. A setting with such a run has no means, and is not ranked."""
        return [run for run in self.group.runs if run.incomplete]

    @property
    def drawn(self) -> list[Run]:
        """Runs whose curves can be drawn: all that have a result; empty if one of them lacks records."""
        return self.finished if not self.incomplete and all(run.curve for run in self.finished) else []

    def spent(self, clock: str) -> list[float]:
        """Value of a clock at the last evaluation of every seed; empty if one of them has no curve."""
        values = [seed.spent(clock) for seed in self.seeds.values()]
        return [] if any(map(math.isnan, values)) else values

    def until(self, clock: str, threshold: float) -> float | None:
        """Median over seeds of the clock at which a return is first reached.

        Args:
          clock: one of CLOCKS.
          threshold: the return.

        Returns:
          The median; None if half of the seeds or more never reach the return, or if a seed has no curve.
        """
        lengths = [seed.until(clock, threshold) for seed in self.seeds.values()]
        with np.errstate(invalid="ignore"):  # the mean of two infinite values
            median = float(np.median(lengths)) if lengths else math.inf
        return median if math.isfinite(median) else None

    def reached(self, threshold: float) -> int | None:
        """Number of seeds that ever reached a return; None if a seed has no curve or no result."""
        lengths = [seed.until("env_steps", threshold) for seed in self.seeds.values()]
        return None if self.incomplete or any(map(math.isnan, lengths)) else sum(map(math.isfinite, lengths))


def load_run(path: Path, note: Callable[[str], None] = warn_on_stderr) -> Run:
    """Run as `read_run` reads it, without damaged metrics or summary; `note` receives sentences about damage."""
    run = read_run(path, note)
    measures = [run.summary.get(key) for key in MEASURES] if run.summary else []
    if not all(one is None or (isinstance(one, int | float) and math.isfinite(one)) for one in measures):
        run = _damaged(run, f"{path / 'summary.json'} holds values of another kind and is left out", note)
        run = replace(run, summary=None)
    try:
        for clock in CLOCKS:
            for x, y in seed_curves(run, clock):
                if not (np.isfinite(x).all() and np.isfinite(y).all()):
                    raise ValueError
        seed_results(run)
    except (ValueError, TypeError, KeyError, IndexError):
        run = _damaged(run, f"{run.path / 'metrics.jsonl'} holds records of another shape and is left out", note)
        return replace(run, rounds=[], evaluations=[], curve=False)
    return run


def _damaged(run: Run, sentence: str, note: Callable[[str], None]) -> Run:
    note(sentence)
    return replace(run, damage=(*run.damage, sentence))


def seed_results(run: Run) -> list[SeedResult]:
    """Result of each seed of a run; empty for runs without evaluations, and without seeds that have no last return.

    If metrics are missing, the final returns are the summary's, and there are no curves.
    """
    first = run.config.get("seed")
    first = first if isinstance(first, int) else 0
    if not run.curve:
        finals = (run.summary or {}).get("eval_return_per_seed") if run.config.get("evaluation.points") != 0 else None
        finals = finals if isinstance(finals, list) else []
        known = [(first + index, float(final)) for index, final in enumerate(finals) if final is not None]
        return [SeedResult(seed, run, final, math.nan, {}) for seed, final in known]
    if not run.evaluations:
        return []
    results = []
    for index, final in enumerate(run.evaluations[-1]["per_seed"]["eval_return_mean"]):
        if final is None:
            continue
        curves = {clock: _curve(run, clock, index) for clock in CLOCKS}
        results.append(SeedResult(first + index, run, float(final), _mean_height(curves["env_steps"]), curves))
    return results


def _curve(run: Run, clock: str, index: int) -> Curve:
    """Evaluations of one seed; points without a clock or a return are left out."""
    points = [(at_seed(row, clock, index), row["per_seed"]["eval_return_mean"][index]) for row in run.evaluations]
    known = np.array([point for point in points if None not in point], dtype=float).reshape(-1, 2)
    return known[:, 0], known[:, 1]


def _mean_height(curve: Curve) -> float:
    x, y = curve
    length = float(x[-1] - x[0]) if len(x) else 0.0
    return float(np.trapezoid(y, x)) / length if length > 0 else float(y.mean()) if len(y) else math.nan


def compare_settings(groups: Sequence[Group]) -> list[Row]:
    """Rows of a table: results of their seeds, and the comparison of each with the best row of its environment."""
    rows = [_row(group) for group in groups]
    best: dict[str, Row] = {}
    for row in rows:
        if row.finals and (row.env not in best or _rank(row) > _rank(best[row.env])):
            best[row.env] = row
    marked = [replace(row, mark=_mark(row)) for row in compared_with(rows, lambda row: best.get(row.env))]
    return [replace(row, mark=_mark_of_top(row, marked)) if row.is_top else row for row in marked]


def compared_with(rows: Sequence[Row], reference_of: Callable[[Row], Row | None], measure: Measure = LAST) -> list[Row]:
    """Rows with their difference from a reference.

    Args:
      rows: settings.
      reference_of: the one of the rows that a row is compared with; None for rows that are not compared.
      measure: what is compared; rows without it are not compared.
    """

    def difference(row: Row) -> Difference | None:
        reference = reference_of(row)
        if reference is None or row is reference or not (row.measured(measure) and reference.measured(measure)):
            return None
        return _compared(reference, row, measure)

    compared = list(map(difference, rows))
    tested = [one.p for one in compared if one is not None and not math.isnan(one.p)]
    corrected = iter(holm(tested))
    judged = []
    for row, one in zip(rows, compared, strict=True):
        p_holm = math.nan if one is None or math.isnan(one.p) else next(corrected)
        judged.append(replace(row, comparison=one, p_holm=p_holm, is_top=row is reference_of(row)))
    return judged


def _mark(row: Row) -> str:
    """Mark of a row by its comparison with the row of the highest mean; "" without one."""
    if row.comparison is None:
        return ""
    return {True: TIED, False: "" if row.p_holm < LEVEL else OPEN, None: FEW}[row.comparison.within_noise]


def _mark_of_top(top: Row, rows: Sequence[Row]) -> str:
    """Mark of a row of the highest mean, from the comparisons of the other rows with it; "" if it is alone."""
    marks = {row.mark for row in rows if row.env == top.env and row.comparison is not None}
    if not marks:
        return ""
    return BEST if marks == {""} else next(mark for mark in (TIED, OPEN, FEW) if mark in marks)


def _rank(row: Row) -> tuple[float, float, float]:
    """Sort key of rows: mean return, then area, then fewer simulated seconds."""
    areas = [seed.area for seed in row.seeds.values()]
    seconds = [float((run.summary or {}).get("simulated_seconds") or 0.0) for run in row.finished]
    area = float(np.mean(areas)) if not any(map(math.isnan, areas)) else -math.inf
    return _mean(row), area, -float(np.mean(seconds)) if seconds else 0.0


def _row(group: Group) -> Row:
    seeds: dict[int, SeedResult] = {}
    if any(run.incomplete for run in group.runs):
        return Row(group)
    for run in group.runs:
        for result in seed_results(run) if run.summary is not None else ():
            seeds.setdefault(result.seed, result)
    return Row(group, dict(sorted(seeds.items())))


def _mean(row: Row) -> float:
    return float(np.mean(row.finals))


def _compared(reference: Row, row: Row, measure: Measure) -> Difference:
    """Difference of one row from another, over the seeds they share if there are two or more."""
    shared = [seed for seed in reference.seeds if seed in row.seeds]
    if len(shared) > 1:
        theirs, own = ([measure.of(side.seeds[seed]) for seed in shared] for side in (reference, row))
        return paired_difference(theirs, own)
    return unpaired_difference(reference.measured(measure), row.measured(measure))


def verdict(row: Row) -> str:
    """Comparison of a row in words: is it the setting or the noise?"""
    difference = row.comparison
    if difference is None:
        return ""
    if difference.within_noise is None:
        return "too few seeds"
    if difference.within_noise:
        return "tied"
    return "the setting" if row.p_holm < LEVEL else "open"


def at_the_edge(rows: Sequence[Row], measure: Measure = LAST) -> list[str]:
    """Sentences on settings whose best learning rate is the smallest or the largest that was tried.

    Args:
      rows: settings, as `compare_settings` returns them.
      measure: by which the best one is chosen.
    """
    families: dict[str, dict[float, Row]] = {}
    for row in rows:
        rate = row.group.values.get(RATE)
        if isinstance(rate, int | float) and row.seeds:
            others = {key: value for key, value in row.group.values.items() if key != RATE}
            families.setdefault(Group(others, row.group.runs).label if others else "", {})[float(rate)] = row
    sentences = []
    for name, tried in families.items():
        means = {rate: float(np.mean(found)) for rate, row in tried.items() if (found := row.measured(measure))}
        best = max(means, key=means.__getitem__, default=math.nan)
        edge = "smallest" if best == min(tried) else "largest" if best == max(tried) else ""
        if len(tried) > 1 and edge:
            other = {"smallest": "smaller", "largest": "larger"}[edge]
            about = f"{name}: " if name else ""
            sentences.append(
                f"{about}best at the {edge} learning rate that was tried, {best:g}; {other} ones may be better"
            )
    return sentences
