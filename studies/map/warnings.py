"""Diagnostics as alarms: which of them announces a collapse, how early, and with how many false alarms."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from stellaris_jax.base.statistics import rank_area
from stellaris_jax.execute.records import WARNINGS
from studies.map.cells import TASKS, Cell
from studies.map.choices import LEARNED, collapse
from studies.map.store import Outcome


class Alarm(NamedTuple):
    """Diagnostic as an alarm.

    Attributes:
      name: name of the diagnostic.
      above: whether it alarms above its threshold, or below.
      threshold: the threshold.
      sensitivity: share of collapsed runs with an alarm before.
      false: share of sound runs with an alarm (false-alarm rate).
      lead: median time from the first alarm to the collapse, as a share of the run.
      area: area under the curve of sensitivity against false alarms over all thresholds; 0.5 is chance.
      area_at_rate: `concordance` among runs of as many learners and the same rate. Above 0.5, the diagnostic knows more
        than that the rate is high.
      area_in_cell: `concordance` among seeds of one cell.
      collapsed: number of collapsed runs that it was judged on.
      sound: number of sound runs that it was judged on.
    """

    name: str
    above: bool
    threshold: float
    sensitivity: float
    false: float
    lead: float
    area: float
    area_at_rate: float
    area_in_cell: float
    collapsed: int
    sound: int


class Sample(NamedTuple):
    """Run that has learned something.

    Attributes:
      cell: cell of the run.
      learned: part in which it had learned.
      fall: part in which it collapsed; None if it did not.
      curve: the diagnostic over the parts.
    """

    cell: Cell
    learned: int
    fall: int | None
    curve: np.ndarray

    def seen(self, until: int | None = None) -> np.ndarray:
        """Diagnostic after learning, up to `until`, by default the collapse or the end."""
        end = until if until is not None else len(self.curve) if self.fall is None else self.fall
        return self.curve[self.learned : max(end, self.learned + 1)]


def samples(runs: Iterable[Outcome], name: str) -> list[Sample]:
    """Values of an alarm on all runs that have learned something."""
    result = []
    for run in runs:
        task = TASKS[run.cell.task]
        learned = np.flatnonzero([task.share(value) >= LEARNED for value in run.returns])
        if len(learned) and np.all(np.isfinite(run.warning(name))):
            result.append(Sample(run.cell, int(learned[0]), collapse(run), np.asarray(run.warning(name))))
    return result


def peaks(runs: Sequence[Sample], above: bool) -> tuple[np.ndarray, np.ndarray]:
    """Most alarming value of every run, of collapsed ones and of sound ones."""
    most = np.max if above else np.min
    collapsed = [most(run.seen()) for run in runs if run.fall is not None]
    return np.array(collapsed), np.array([most(run.seen()) for run in runs if run.fall is None])


def _alarming(collapsed: np.ndarray, sound: np.ndarray, above: bool) -> float:
    """Probability that a collapsed run looks more alarming than a sound one, by their most alarming values.

    Args:
      collapsed, sound: those of runs of either kind.
      above: whether large values alarm.
    """
    return rank_area(collapsed, sound) if above else rank_area(-collapsed, -sound)


def concordance(runs: Sequence[Sample], above: bool, alike: Callable[[Cell], object]) -> float:
    """Probability that a run looks more alarming, up to its collapse, than a run that has not collapsed by then.

    Both are compared up to the same part, so that a longer run has no more chances to alarm.

    Args:
      runs: the runs.
      above: whether large values alarm.
      alike: key of a cell; only runs with equal keys are compared.

    Returns:
      A share of all such pairs; 0.5 is chance, NaN if there are none.
    """
    most = np.max if above else np.min
    groups: dict[object, list[Sample]] = defaultdict(list)
    for run in runs:
        groups[alike(run.cell)].append(run)
    wins, pairs = 0.0, 0
    for group in groups.values():
        for run in group:
            if run.fall is None:
                continue
            others = [
                most(other.seen(run.fall))
                for other in group
                if other.learned < run.fall and (other.fall is None or other.fall > run.fall)
            ]
            if others:
                wins += len(others) * _alarming(np.array([most(run.seen())]), np.array(others), above)
                pairs += len(others)
    return wins / pairs if pairs else float("nan")


def alarm(name: str, chosen_on: Sequence[Outcome], judged_on: Sequence[Outcome]) -> Alarm | None:
    """Alarm of a diagnostic: side and threshold are chosen on some runs, and judged on others.

    The threshold has the largest sensitivity minus false-alarm rate.

    Args:
      name: name of the diagnostic.
      chosen_on: runs that choose side and threshold.
      judged_on: runs that judge them.

    Returns:
      The alarm; None if either has no collapsed or no sound runs.
    """
    first, second = samples(chosen_on, name), samples(judged_on, name)
    if any(not side.size for runs in (first, second) for side in peaks(runs, True)):
        return None
    above = max((True, False), key=lambda side: _alarming(*peaks(first, side), side))
    collapsed, sound = peaks(first, above)
    sign = 1 if above else -1
    candidates = np.unique(np.concatenate([collapsed, sound]))
    gains = [np.mean(sign * collapsed >= sign * c) - np.mean(sign * sound >= sign * c) for c in candidates]
    threshold = float(candidates[int(np.argmax(gains))])
    collapsed, sound = peaks(second, above)
    leads = [
        (len(run.seen()) - int(rings[0])) / len(run.curve)
        for run in second
        if run.fall is not None and len(rings := np.flatnonzero(sign * run.seen() >= sign * threshold))
    ]
    return Alarm(
        name,
        above,
        threshold,
        float(np.mean(sign * collapsed >= sign * threshold)),
        float(np.mean(sign * sound >= sign * threshold)),
        float(np.median(leads)) if leads else float("nan"),
        _alarming(collapsed, sound, above),
        concordance(second, above, lambda cell: (cell.learners, cell.rate, cell.variation)),
        concordance(second, above, lambda cell: cell),
        len(collapsed),
        len(sound),
    )


def alarms(chosen_on: Sequence[Outcome], judged_on: Sequence[Outcome]) -> list[Alarm]:
    """Alarms of all diagnostics, the most reliable first."""
    known = [alarm_ for name in WARNINGS if (alarm_ := alarm(name, chosen_on, judged_on)) is not None]
    return sorted(known, key=lambda alarm_: -alarm_.area)
