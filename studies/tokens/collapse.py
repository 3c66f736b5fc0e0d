"""Which record announces a collapse: how well it separates runs that will collapse from those that will not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from stellaris_jax.base.statistics import rank_area
from studies import panels
from studies.claims import Claim, beyond
from studies.outcomes import POINTS, Outcome
from studies.study import Study
from studies.tokens.cells import SIGNALS
from studies.tokens.measures import COLLAPSED, collapses

MOMENTS = {"a quarter": POINTS // 4, "half": POINTS // 2}
"""Parts of the run after which the records are read, of `POINTS`."""
DRAWS = 2000


class Separation(NamedTuple):
    """Probability that a record is further on its side in a run that collapses later than in one that does not.

    Attributes:
      area: this probability, the area under the ROC curve; 0.5 tells nothing.
      low: lower end of its 95 % interval, by bootstrap over places, all runs of which are drawn together.
      high: its upper end.
    """

    area: float
    low: float
    high: float


def _area(values: np.ndarray, events: np.ndarray) -> float:
    """Area under the ROC curve of values `[runs]` that announce events `[runs]`."""
    return rank_area(values[events], values[~events])


def area_within(values: np.ndarray, events: np.ndarray, groups: Sequence[object]) -> float:
    """Area under the ROC curve over pairs of one group alone, NaN without any.

    >>> area_within(np.array([1.0, 3.0, 0.0, 2.0]), np.array([False, False, True, True]), ["a", "a", "b", "b"])
    nan
    >>> area_within(np.array([1.0, 3.0, 0.0, 2.0]), np.array([False, True, True, False]), ["a", "a", "b", "b"])
    0.5
    """
    total, pairs = 0.0, 0
    for group in dict.fromkeys(groups):
        rows = np.flatnonzero([group == other for other in groups])
        number = int(events[rows].sum()) * int((~events[rows]).sum())
        if number:
            total += number * _area(values[rows], events[rows])
            pairs += number
    return total / pairs if pairs else float("nan")


def separation(values: np.ndarray, events: np.ndarray, places: Sequence[object]) -> Separation:
    """Separation of runs by a record.

    Args:
      values: the record, so that high values announce, `[runs]`.
      events: whether a run collapses later, `[runs]`.
      places: place of each run.
    """
    groups = [np.flatnonzero([place == other for other in places]) for place in dict.fromkeys(places)]
    random = np.random.default_rng(0)
    drawn = []
    for _ in range(DRAWS):
        rows = np.concatenate([groups[number] for number in random.integers(len(groups), size=len(groups))])
        drawn.append(_area(values[rows], events[rows]))
    known = np.array(drawn)[np.isfinite(drawn)]
    low, high = np.quantile(known, (0.025, 0.975)) if len(known) else (np.nan, np.nan)
    return Separation(_area(values, events), float(low), float(high))


def healthy(run: Outcome, moment: int) -> bool:
    """Whether a run has not collapsed up to the last evaluation of so many of its `POINTS` parts."""
    known = [
        value for end, value in zip(run.rounds, run.returns, strict=True) if end * POINTS <= moment * run.rounds[-1]
    ]
    return known[-1] >= COLLAPSED * max(known)


def claims(study: Study, runs: Sequence[Outcome]) -> list[Claim]:
    """Claims that a record announces a collapse; also writes the table and the picture."""
    made, rows = [], []
    curves: dict[str, list[tuple[float, float, float]]] = {}
    for words, moment in MOMENTS.items():
        left = [run for run in runs if healthy(run, moment)]
        for name, (side, source) in SIGNALS.items():  # not every loss has every record
            known = [run for run in left if np.isfinite(run.signal(name)[moment - 1])]
            events = np.array([collapses(run) for run in known])
            read = np.array([run.signal(name)[moment - 1] for run in known])
            warning = read if side == "high" else -read
            found = separation(warning, events, [run.cell.place for run in known])
            alike = area_within(warning, events, [run.cell.rate for run in known])
            texts = [f"{value:.4g}" for value in (*found, alike)]
            rows.append([words, name, side, *texts, int(events.sum()), len(known)])
            curves.setdefault(f"after {words} of the run", []).append(found)
            numbers = (
                f"{found.area:.2f} ({found.low:.2f} to {found.high:.2f}), {alike:.2f} among runs of one learning rate; "
                f"{events.sum()} of {len(known)} collapse"
            )
            text = f"after {words} of a run, a {side} {name} announces a later collapse (area under the ROC curve)"
            made.append(beyond(text, source, numbers, found, 0.5))
    header = ("moment", "record", "side", "area", "low", "high", "area_at_rate", "collapse", "runs")
    study.table("collapse", header, rows)
    ticks = {"addition": [f"{name}\n{side}" for name, (side, _) in SIGNALS.items()]}
    title, picture = "How well a record announces a later collapse", study.picture("collapse")
    axis, measure, over = "record, and its side", "area under the ROC curve", "over methods and ages"
    tasks, possible = {"addition": curves}, (0.0, 1.0)
    panels.panels(tasks, ticks, axis, measure, picture, title, joined=False, bars=over, possible=possible)
    return made
