"""Which diagnostic announces a collapse, how early, and how often for nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from stellaris_jax.reproduce.map.cells import TASKS, Cell
from stellaris_jax.reproduce.map.choices import LEARNED, collapse
from stellaris_jax.reproduce.map.store import Outcome
from stellaris_jax.training.records import WARNINGS


class Alarm(NamedTuple):
    """A diagnostic as an alarm. above: whether it rings above its threshold, or below. sensitivity: share of runs that
    collapsed and were announced. false: share of runs that did not collapse and rang all the same. lead: median of
    how early the first ring of announced runs was, in shares of the run. area: under the curve of sensitivity against
    false alarms over all thresholds; 0.5 tells nothing. area_at_rate, area_in_cell: of a run that collapses beside runs
    of as many learners and the same rate, and beside other seeds of its own cell, see `concordance`: what a diagnostic
    tells beyond that the rate is high. collapsed, sound: runs it was judged on."""

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
    """One run that has learned something. learned: when. fall: when it collapsed, None if it did not."""

    cell: Cell
    learned: int
    fall: int | None
    curve: np.ndarray

    def seen(self, until: int | None = None) -> np.ndarray:
        """The diagnostic from when it had learned something up to `until`, by default its collapse or its end."""
        end = until if until is not None else len(self.curve) if self.fall is None else self.fall
        return self.curve[self.learned : max(end, self.learned + 1)]


def samples(runs: Iterable[Outcome], name: str) -> list[Sample]:
    """What an alarm may have seen of the runs that have learned something."""
    found = []
    for one in runs:
        task = TASKS[one.cell.task]
        learned = np.flatnonzero([task.share(value) >= LEARNED for value in one.returns])
        if len(learned) and np.all(np.isfinite(one.warning(name))):
            found.append(Sample(one.cell, int(learned[0]), collapse(one), np.asarray(one.warning(name))))
    return found


def peaks(found: Sequence[Sample], above: bool) -> tuple[np.ndarray, np.ndarray]:
    """The most alarming value of every run, of collapsed ones and of sound ones."""
    most = np.max if above else np.min
    collapsed = [most(one.seen()) for one in found if one.fall is not None]
    return np.array(collapsed), np.array([most(one.seen()) for one in found if one.fall is None])


def rank_area(collapsed: np.ndarray, sound: np.ndarray, above: bool) -> float:
    """The probability that a collapsed run looks more alarming than a sound one (Mann and Whitney's U).

    >>> rank_area(np.array([3.0, 2.0]), np.array([1.0, 2.0]), True)
    0.875
    """
    difference = np.subtract.outer(collapsed, sound) * (1 if above else -1)
    return float(np.mean((difference > 0) + 0.5 * (difference == 0)))


def concordance(found: Sequence[Sample], above: bool, alike: Callable[[Cell], object]) -> float:
    """The probability that a run looks more alarming, up to its collapse, than one that has not collapsed by then.

    Both are looked at up to the same moment, so that a run that goes on for longer has no more chances to ring.

    Args:
      found: the runs.
      above: whether large values alarm.
      alike: only runs for which it returns the same are compared.

    Returns:
      A share of all such pairs; 0.5 tells nothing, NaN if there are none.
    """
    most = np.max if above else np.min
    groups: dict[object, list[Sample]] = defaultdict(list)
    for one in found:
        groups[alike(one.cell)].append(one)
    wins, pairs = 0.0, 0
    for group in groups.values():
        for one in group:
            if one.fall is None:
                continue
            others = [
                most(other.seen(one.fall))
                for other in group
                if other.learned < one.fall and (other.fall is None or other.fall > one.fall)
            ]
            if others:
                wins += len(others) * rank_area(np.array([most(one.seen())]), np.array(others), above)
                pairs += len(others)
    return wins / pairs if pairs else float("nan")


def alarm(name: str, chosen_on: Sequence[Outcome], judged_on: Sequence[Outcome]) -> Alarm | None:
    """The alarm of a diagnostic: side and threshold (of the largest sensitivity less false alarms) chosen on some runs,
    judged on others; None where either have nothing to tell."""
    first, second = samples(chosen_on, name), samples(judged_on, name)
    if any(not side.size for found in (first, second) for side in peaks(found, True)):
        return None
    above = max((True, False), key=lambda side: rank_area(*peaks(first, side), side))
    collapsed, sound = peaks(first, above)
    sign = 1 if above else -1
    candidates = np.unique(np.concatenate([collapsed, sound]))
    gains = [np.mean(sign * collapsed >= sign * c) - np.mean(sign * sound >= sign * c) for c in candidates]
    threshold = float(candidates[int(np.argmax(gains))])
    collapsed, sound = peaks(second, above)
    leads = [
        (len(one.seen()) - int(rings[0])) / len(one.curve)
        for one in second
        if one.fall is not None and len(rings := np.flatnonzero(sign * one.seen() >= sign * threshold))
    ]
    return Alarm(
        name,
        above,
        threshold,
        float(np.mean(sign * collapsed >= sign * threshold)),
        float(np.mean(sign * sound >= sign * threshold)),
        float(np.median(leads)) if leads else float("nan"),
        rank_area(collapsed, sound, above),
        concordance(second, above, lambda cell: (cell.learners, cell.rate, cell.variation)),
        concordance(second, above, lambda cell: cell),
        len(collapsed),
        len(sound),
    )


def alarms(chosen_on: Sequence[Outcome], judged_on: Sequence[Outcome]) -> list[Alarm]:
    """All diagnostics, the most telling first."""
    found = [one for name in WARNINGS if (one := alarm(name, chosen_on, judged_on)) is not None]
    return sorted(found, key=lambda one: -one.area)
