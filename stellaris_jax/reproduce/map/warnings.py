"""Which diagnostic announces a collapse, how early, and how often for nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from stellaris_jax.reproduce.map.cells import TASKS
from stellaris_jax.reproduce.map.choices import LEARNED, collapse
from stellaris_jax.reproduce.map.store import Outcome
from stellaris_jax.training.records import WARNINGS


class Alarm(NamedTuple):
    """A diagnostic as an alarm. above: whether it rings above its threshold, or below. sensitivity: share of runs that
    collapsed and were announced. false: share of runs that did not collapse and rang all the same. lead: median of
    how early the first ring of announced runs was, in shares of the run. area: under the curve of sensitivity against
    false alarms over all thresholds; 0.5 tells nothing. collapsed, sound: runs it was judged on."""

    name: str
    above: bool
    threshold: float
    sensitivity: float
    false: float
    lead: float
    area: float
    collapsed: int
    sound: int


class Sample(NamedTuple):
    """One run. curve: the diagnostic from when it had learned something up to its collapse, or to its end."""

    collapsed: bool
    curve: np.ndarray
    parts: int


def samples(runs: Iterable[Outcome], name: str) -> list[Sample]:
    """What an alarm may have seen of the runs that have learned something."""
    found = []
    for one in runs:
        task = TASKS[one.cell.task]
        learned = np.flatnonzero([task.share(value) >= LEARNED for value in one.returns])
        fall = collapse(one)
        if not len(learned) or not np.all(np.isfinite(one.warning(name))):
            continue
        end = len(one.returns) if fall is None else fall
        curve = np.asarray(one.warning(name))[learned[0] : max(end, learned[0] + 1)]
        found.append(Sample(fall is not None, curve, len(one.returns)))
    return found


def peaks(found: Sequence[Sample], above: bool) -> tuple[np.ndarray, np.ndarray]:
    """The most alarming value of every run, of collapsed ones and of sound ones."""
    most = np.max if above else np.min
    return tuple(np.array([most(one.curve) for one in found if one.collapsed == kind]) for kind in (True, False))  # type: ignore[return-value]


def rank_area(collapsed: np.ndarray, sound: np.ndarray, above: bool) -> float:
    """The probability that a collapsed run looks more alarming than a sound one (Mann and Whitney's U).

    >>> rank_area(np.array([3.0, 2.0]), np.array([1.0, 2.0]), True)
    0.875
    """
    difference = np.subtract.outer(collapsed, sound) * (1 if above else -1)
    return float(np.mean((difference > 0) + 0.5 * (difference == 0)))


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
        (len(one.curve) - int(rings[0])) / one.parts
        for one in second
        if one.collapsed and len(rings := np.flatnonzero(sign * one.curve >= sign * threshold))
    ]
    return Alarm(
        name,
        above,
        threshold,
        float(np.mean(sign * collapsed >= sign * threshold)),
        float(np.mean(sign * sound >= sign * threshold)),
        float(np.median(leads)) if leads else float("nan"),
        rank_area(collapsed, sound, above),
        len(collapsed),
        len(sound),
    )


def alarms(chosen_on: Sequence[Outcome], judged_on: Sequence[Outcome]) -> list[Alarm]:
    """All diagnostics, the most telling first."""
    found = [one for name in WARNINGS if (one := alarm(name, chosen_on, judged_on)) is not None]
    return sorted(found, key=lambda one: -one.area)
