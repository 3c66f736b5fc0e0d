"""Logs of jobs that have run somewhere, as durations for the simulator and as what its results are compared with."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from stellaris_jax.base import inputs
from stellaris_jax.base.errors import ConfigError
from stellaris_jax.config.schema import shown
from stellaris_jax.timeline.jobs import KINDS, Job
from stellaris_jax.timeline.jobs import read as read_jobs
from stellaris_jax.timeline.records import Batch, Fragment, Group, Round
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
        """Add a job of a batch."""
        self.starts.append(job.start)
        self.ends.append(job.end)
        self.begun.append(UNKNOWN if job.version_start is None else job.version_start)
        self.ended.append(UNKNOWN if job.version_end is None else job.version_end)
        self.batches.append(batch)
        self.workers.append(UNKNOWN if job.id is None else self.names.setdefault(job.id, len(self.names)))


class Staleness(NamedTuple):
    """Staleness of a log's gradients or of what its actors made, in versions.

    Attributes:
      mean: mean over jobs.
      jobs: number of them whose staleness is known.
      aggregated: it is counted up to the aggregation; otherwise up to the end of the job.
    """

    mean: float
    jobs: int
    aggregated: bool


class Log:
    """Jobs of a log, by their kinds."""

    def __init__(self, found: Iterable[Job]) -> None:
        self.kinds = {kind: Columns() for kind in KINDS}
        self._batches: dict[str, int] = {}
        for job in found:
            batch = UNKNOWN if job.batch is None else self._batches.setdefault(job.batch, len(self._batches))
            self.kinds[job.kind].add(job, batch)

    def durations(self, kind: str) -> list[float]:
        """Seconds of all jobs of a kind, by the order of their starts."""
        starts, ends = np.array(self.kinds[kind].starts), np.array(self.kinds[kind].ends)
        order = np.lexsort((ends, starts))
        seconds: list[float] = (ends - starts)[order][ends[order] > starts[order]].tolist()
        return seconds

    def instant(self, kind: str) -> int:
        """Number of jobs of a kind that take no time, as times in whole seconds make of short ones."""
        return len(self.kinds[kind].starts) - len(self.durations(kind))

    def workers(self, kind: str) -> int:
        """Number of distinct `id`s of a kind; 0 where its jobs have none."""
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
        begun, batches = np.array(learner.begun), np.array(learner.batches)
        known = begun != UNKNOWN
        if not known.any():
            return None
        clocks = self._clocks()[batches]
        aggregated = known & (batches != UNKNOWN) & (clocks >= begun)
        if 2 * aggregated.sum() >= known.sum():
            return _mean_of((clocks - begun)[aggregated], np.array(learner.ends)[aggregated], most, True)
        return self.published_during("learner", most)

    def published_during(self, kind: str, most: int | None = None) -> Staleness | None:
        """Versions that were published while a job of a kind ran; None where no such job has a version.

        Args:
          kind: `learner` or `actor`.
          most: number of jobs, the first ones by their ends; all by default.
        """
        one = self.kinds[kind]
        begun, ended, ends = np.array(one.begun), np.array(one.ended), np.array(one.ends)
        known = begun != UNKNOWN
        if not known.any():
            return None
        newest = np.where(ended == UNKNOWN, self._newest(ends), ended)
        return _mean_of(np.maximum(newest - begun, 0)[known], ends[known], most, False)

    def _clocks(self) -> np.ndarray:
        """Version that each batch's aggregation starts from, and `UNKNOWN` for what has no batch."""
        clocks = np.full(len(self._batches) + 1, UNKNOWN)
        clocks[np.array(self.kinds["aggregate"].batches, int)] = np.array(self.kinds["aggregate"].begun, int)
        clocks[UNKNOWN] = UNKNOWN
        return clocks

    def _newest(self, seconds: np.ndarray) -> np.ndarray:
        """Newest version at some seconds, as far as jobs tell: those begun before, and those ended by then."""
        found = np.full(len(seconds), UNKNOWN)
        # A job that starts at that very second may work with the version that the gradient becomes part of.
        for times, versions, side in (("starts", "begun", "left"), ("ends", "ended", "right")):
            at = np.concatenate([np.array(getattr(one, times)) for one in self.kinds.values()])
            version = np.concatenate([np.array(getattr(one, versions)) for one in self.kinds.values()])
            order = np.argsort(at, kind="stable")
            newest = np.concatenate([[UNKNOWN], np.maximum.accumulate(version[order])])
            found = np.maximum(found, newest[np.searchsorted(at[order], seconds, side)])  # type: ignore[call-overload]
        return found


def _mean_of(staleness: np.ndarray, ends: np.ndarray, most: int | None, aggregated: bool) -> Staleness:
    """Mean over the first gradients by the ends of their jobs."""
    first = staleness[np.argsort(ends, kind="stable")[:most]]
    return Staleness(float(first.mean()), len(first), aggregated)


def read_log(log: Path) -> Log:
    """The jobs of a log: a file of JSONL or CSV, or a live run's directory or trace. Raises ConfigError."""
    try:
        path = log / NAME if log.is_dir() else log
        stamp = path.stat().st_mtime_ns
    except (OSError, ValueError) as error:  # a name that no file can have among them
        raise ConfigError(f"{shown(str(log))} is no log of jobs: {inputs.reason(error)}.") from None
    return _read(path, stamp)


def durations(log: Path, kind: str) -> list[float]:
    """Seconds of all jobs of a kind in a log, by the order of their starts. Raises ConfigError."""
    return read_log(log).durations(kind)


@lru_cache(maxsize=8)
def _read(path: Path, stamp: int) -> Log:
    """The jobs in the file as it was at a time."""
    if path.name != NAME:
        return Log(read_jobs(path))
    try:
        return Log(map(_bounded, jobs_of((one.record, one.rolls) for one in read_trace(path).rounds)))
    except (TypeError, ValueError, AttributeError, OverflowError):
        raise ConfigError(f"{path} is no log of jobs: it holds something else than seconds.") from None


def _bounded(job: Job) -> Job:
    if not (math.isfinite(job.start) and math.isfinite(job.end)):
        raise ValueError(f"{job.start} to {job.end}")
    return job


class Loading:
    """Batches whose minibatches could not be had yet when their round ended."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []

    def done(self, record: Round) -> list[Batch]:
        """Batches that are loaded by the end of a round."""
        batches = [*self.batches, *record.batches]
        self.batches = [batch for batch in batches if batch.loaded == 0.0]
        return [batch for batch in batches if batch.loaded > 0.0]


class Versions:
    """Seconds at which versions were published."""

    def __init__(self) -> None:
        self.first = 0
        self.seconds = array("d")

    def add(self, record: Round) -> None:
        """Add the versions of a round."""
        if record.groups and not self.seconds:
            self.first = record.groups[0].clock
        self.seconds.extend(group.published for group in record.groups)

    def newest(self, second: float) -> int:
        """Newest version at a second."""
        return self.first + bisect_right(self.seconds, second)


def _jobs_of_shards(
    record: Round, rolled: Callable[[int], int | None], versions: Versions, loading: Loading
) -> Iterator[Job]:
    """Jobs of the fragments that a round of independent actors has used or dropped, and of its loader."""
    fragments: list[tuple[str | None, Fragment]] = [
        (str(batch.index), one) for batch in record.batches for one in batch.fragments
    ]
    for name, one in [*fragments, *((None, fragment) for fragment in record.dropped_fragments)]:
        first, newest = one.versions[0], versions.newest(one.end)
        yield Job("actor", one.begin, one.end, str(one.shard), first, newest, rolled(1), name)
    for batch in loading.done(record):
        if batch.loaded > batch.second:
            yield Job("loader", batch.second, batch.loaded, batch=str(batch.index))


def jobs_of(
    rounds: Iterable[tuple[Round, Sequence[Roll]]],
    rolled: Callable[[int], int | None] = lambda actors: None,
    learned: int | None = None,
) -> Iterator[Job]:
    """Jobs of rounds, simulated or live.

    A loader's seconds are all in which the driver keeps everybody waiting: from the last version of a round to the
    first actor, and from the last actor to minibatches. Of independent actors, a job is a shard's fragment, and a
    loader's job is that of a batch.

    Args:
      rounds: each with what its actors rolled.
      rolled: steps that each of so many actors rolls.
      learned: steps that a learner learns from.
    """
    before: float | None = None
    last: list[Group] = []
    shards, versions, loading = False, Versions(), Loading()
    for record, rolls in rounds:
        shards = shards or bool(record.batches)
        if shards:
            versions.add(record)
            yield from _jobs_of_shards(record, rolled, versions, loading)
            rolls = ()
        before = record.start if before is None else before
        fragment, behaviour = str(record.index), record.behaviour_version
        if rolls:
            between = max(0.0, min(roll.start for roll in rolls) - before)
            begin = max(roll.end for roll in rolls) - between
            yield Job("loader", begin, record.complete, batch=fragment)
        before = max((group.published for group in record.groups), default=before)
        for group in record.groups:
            for one in group.gradients:
                newest, batch = one.version + one.in_flight, str(group.clock + 1)
                yield Job("learner", one.start, one.end, str(one.learner), one.version, newest, learned, batch)
        for one in record.dropped:
            newest = one.version + one.in_flight
            yield Job("learner", one.start, one.end, str(one.learner), one.version, newest, learned)
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
