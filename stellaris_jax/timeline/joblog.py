"""Logs of jobs: they provide durations for the simulator, and measurements to compare its results with."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from stellaris_jax.config import inputs
from stellaris_jax.config.schema import ConfigError, shown
from stellaris_jax.timeline import jobs
from stellaris_jax.timeline.jobs import KINDS, Job
from stellaris_jax.timeline.records import Group, Round
from stellaris_jax.timeline.trace import NAME, Roll
from stellaris_jax.timeline.trace import read as read_trace

UNKNOWN = -1
"""Version, batch or worker of a job that has none in its log."""
OVERLAP = 0.01
"""Share of the shorter of two jobs for which they may overlap, by rounded times, and be of one worker."""


class Columns:
    """Columns of the jobs of one kind: seconds, versions, batches and workers as numbers, and the numbers of `id`s."""

    def __init__(self) -> None:
        self.starts, self.ends = array("d"), array("d")
        self.begun, self.ended, self.batches = array("q"), array("q"), array("q")
        self.workers = array("q")
        self.names: dict[str, int] = {}

    def add(self, job: Job, batch: int) -> None:
        """Add a job that belongs to a numbered batch."""
        self.starts.append(job.start)
        self.ends.append(job.end)
        self.start_versions.append(UNKNOWN if job.version_start is None else job.version_start)
        self.end_versions.append(UNKNOWN if job.version_end is None else job.version_end)
        self.batches.append(batch)
        self.workers.append(UNKNOWN if job.id is None else self.names.setdefault(job.id, len(self.names)))


class Staleness(NamedTuple):
    """Staleness of a log's gradients, in versions.

    Attributes:
      mean: mean over gradients.
      gradients: number of gradients whose staleness is known.
      aggregated: True if staleness is measured at the aggregation, False at the end of the learner's job.
    """

    mean: float
    gradients: int
    aggregated: bool


class Log:
    """Jobs of a log, grouped by kind."""

    def __init__(self, rows: Iterable[Job]) -> None:
        self.kinds = {kind: Columns() for kind in KINDS}
        self._batches: dict[str, int] = {}
        for job in rows:
            batch = UNKNOWN if job.batch is None else self._batches.setdefault(job.batch, len(self._batches))
            self.kinds[job.kind].add(job, batch)

    def durations(self, kind: str) -> list[float]:
        """Seconds of all jobs of a kind, in the order of their starts."""
        starts, ends = np.array(self.kinds[kind].starts), np.array(self.kinds[kind].ends)
        order = np.lexsort((ends, starts))
        seconds: list[float] = (ends - starts)[order][ends[order] > starts[order]].tolist()
        return seconds

    def workers(self, kind: str) -> int:
        """Number of distinct `id`s of a kind; 0 if its jobs have none."""
        return len(self.kinds[kind].names)

    def unnamed(self, kind: str) -> int:
        """Number of jobs without `id`, of a kind whose other jobs have one."""
        return list(self.kinds[kind].workers).count(UNKNOWN) if self.workers(kind) else 0

    def overlapping(self, kind: str) -> str | None:
        """The first `id` of a kind that has two jobs at a time, which no learner and no actor has."""
        one = self.kinds[kind]
        workers, starts, ends = np.array(one.workers, int), np.array(one.starts), np.array(one.ends)
        order = np.lexsort((ends, starts, workers))
        workers, starts, ends = workers[order], starts[order], ends[order]
        common = np.minimum(ends[:-1], ends[1:]) - starts[1:]
        shorter = np.minimum((ends - starts)[:-1], (ends - starts)[1:])
        found = (workers[1:] == workers[:-1]) & (workers[1:] != UNKNOWN) & (common > OVERLAP * shorter)
        return list(one.names)[workers[1:][found][0]] if found.any() else None

    def utilisation(self) -> float | None:
        """Share of the time that learners compute; None where their number or the time is unknown."""
        if self.unnamed("learner") or self.overlapping("learner"):
            return None
        seconds = [(min(one.starts), max(one.ends)) for one in self.kinds.values() if one.starts]
        span = max(end for _, end in seconds) - min(start for start, _ in seconds) if seconds else 0.0
        learners = self.workers("learner")
        return sum(self.durations("learner")) / (span * learners) if learners and span > 0 else None

    def staleness(self, most: int | None = None) -> Staleness | None:
        """Staleness of the learners' gradients; None where no job of a learner has a version.

        It is counted up to the aggregation where learners and aggregations share batches, for half of the gradients at
        least. Otherwise it is counted up to the end of the learner's job.

        Args:
          most: number of gradients, the first ones by the ends of their jobs; all by default.
        """
        learner = self.kinds["learner"]
        fetched, batches = np.array(learner.start_versions), np.array(learner.batches)
        known = fetched != UNKNOWN
        if not known.any():
            return None
        clocks = self._clocks()[batches]
        aggregated = known & (batches != UNKNOWN) & (clocks >= fetched)
        if 2 * aggregated.sum() >= known.sum():
            return _mean_of((clocks - begun)[aggregated], np.array(learner.ends)[aggregated], most, True)
        ended = np.array(learner.ended)
        newest = np.where(ended == UNKNOWN, self._newest(np.array(learner.ends)), ended)
        return _mean_of(np.maximum(newest - begun, 0)[known], np.array(learner.ends)[known], most, False)

    def _clocks(self) -> np.ndarray:
        """Version at which each batch's aggregation starts, with a last entry `UNKNOWN` for jobs without a batch."""
        clocks = np.full(len(self._batches) + 1, UNKNOWN)
        clocks[np.array(self.kinds["aggregate"].batches, int)] = np.array(self.kinds["aggregate"].start_versions, int)
        clocks[UNKNOWN] = UNKNOWN
        return clocks

    def _newest(self, seconds: np.ndarray) -> np.ndarray:
        """Newest version logged by given seconds, from jobs that started before and jobs that had ended."""
        result = np.full(len(seconds), UNKNOWN)
        # A job that starts at the same second may use the version that contains the gradient, so it is left out.
        for times, versions, side in (("starts", "start_versions", "left"), ("ends", "end_versions", "right")):
            at = np.concatenate([np.array(getattr(columns, times)) for columns in self.kinds.values()])
            version = np.concatenate([np.array(getattr(columns, versions)) for columns in self.kinds.values()])
            order = np.argsort(at, kind="stable")
            newest = np.concatenate([[UNKNOWN], np.maximum.accumulate(version[order])])
            at_seconds = newest[np.searchsorted(at[order], seconds, side)]  # type: ignore[call-overload]
            result = np.maximum(result, at_seconds)
        return result


def _mean_of(staleness: np.ndarray, ends: np.ndarray, most: int | None, aggregated: bool) -> Staleness:
    """Mean over the first gradients by the ends of their jobs."""
    first = staleness[np.argsort(ends, kind="stable")[:most]]
    return Staleness(float(first.mean()), len(first), aggregated)


def read_log(log: Path) -> Log:
    """Jobs of a log: a file of JSONL or CSV, or a live run's directory or trace. Raises ConfigError."""
    try:
        path = log / NAME if log.is_dir() else log
        stamp = path.stat().st_mtime_ns
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        raise ConfigError(f"{shown(str(log))} is no log of jobs: {inputs.reason(error)}.") from None
    return _read(path, stamp)


def durations(log: Path, kind: str) -> list[float]:
    """Seconds of all jobs of a kind in a log, in the order of their starts. Raises ConfigError."""
    return read_log(log).durations(kind)


@lru_cache(maxsize=8)
def _read(path: Path, stamp: int) -> Log:
    """Jobs of a file, cached by its path and its time of modification, `stamp`."""
    if path.name != NAME:
        return Log(jobs.read(path))
    try:
        return Log(map(_bounded, jobs_of((round_.record, round_.rolls) for round_ in read_trace(path).rounds)))
    except (TypeError, ValueError, AttributeError, OverflowError):
        raise ConfigError(f"{path} is no log of jobs: it holds something else than seconds.") from None


def _bounded(job: Job) -> Job:
    if not (math.isfinite(job.start) and math.isfinite(job.end)):
        raise ValueError(f"{job.start} to {job.end}")
    return job


def jobs_of(
    rounds: Iterable[tuple[Round, Sequence[Roll]]],
    rolled: Callable[[int], int | None] = lambda actors: None,
    learned: int | None = None,
) -> Iterator[Job]:
    """Jobs of simulated or live rounds.

    A loader job covers all time in which actors and learners wait for the driver: from the last version of a round to
    the first actor, and from the last actor to the minibatches.

    Args:
      rounds: pairs of a round and the rolls of its actors.
      rolled: function from a number of actors to the steps that each of them rolls; None if unknown.
      learned: steps that a learner learns from; None if unknown.
    """
    before: float | None = None
    last: list[Group] = []
    for record, rolls in rounds:
        before = record.start if before is None else before
        fragment, behaviour = str(record.index), record.behaviour_version
        if rolls:
            between = max(0.0, min(roll.start for roll in rolls) - before)
            begin = max(roll.end for roll in rolls) - between
            yield Job("loader", begin, record.complete, batch=fragment)
        before = max((group.published for group in record.groups), default=before)
        for group in record.groups:
            for g in group.gradients:
                newest, batch = g.version + g.in_flight, str(group.clock + 1)
                yield Job("learner", g.start, g.end, str(g.learner), g.version, newest, learned, batch)
        for g in record.dropped:
            newest = g.version + g.in_flight
            yield Job("learner", g.start, g.end, str(g.learner), g.version, newest, learned)
        published = [group for group in (*last, *record.groups) if group.published > record.start]
        seconds = [group.published for group in published]
        length = rolled(len(rolls)) if rolls else None
        for roll in rolls:
            place = bisect_right(seconds, roll.end)
            newest = published[place - 1].clock + 1 if place else behaviour
            yield Job("actor", roll.start, roll.end, str(roll.actor), behaviour, newest, length, fragment)
        for group in record.groups:
            batch = str(group.clock + 1)
            yield Job("aggregate", group.second, group.published, None, group.clock, group.clock + 1, None, batch)
        last = record.groups
