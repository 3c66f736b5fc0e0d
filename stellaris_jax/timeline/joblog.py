"""Logs of jobs that have run somewhere, as durations for the simulator."""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from stellaris_jax.config import inputs
from stellaris_jax.config.schema import ConfigError, shown
from stellaris_jax.timeline.trace import NAME, RoundTrace, read

KINDS = ("learner", "actor", "aggregate", "loader")


def durations(log: Path, kind: str) -> list[float]:
    """Seconds of all jobs of a kind, by the order of their starts.

    Args:
      log: a file of one JSON object per line with `kind`, `start` and `end` (others are passed over), or a live run's
        directory or trace.
      kind: one of `KINDS`.

    Raises:
      ConfigError: it cannot be read as one.
    """
    path = log / NAME if log.is_dir() else log
    try:
        stamp = path.stat().st_mtime_ns
    except OSError as error:
        raise ConfigError(f"{log} is no log of jobs: {error.strerror}.") from None
    jobs = _jobs(path, stamp)[kind]
    starts, ends = np.array(jobs.starts), np.array(jobs.ends)
    order = np.lexsort((ends, starts))
    seconds: list[float] = (ends - starts)[order][ends[order] > starts[order]].tolist()
    return seconds


class Jobs(NamedTuple):
    """Seconds at which jobs of a kind start and end."""

    starts: array[float]
    ends: array[float]

    def add(self, start: float, end: float) -> None:
        """Add a job."""
        self.starts.append(start)
        self.ends.append(end)


def _none() -> dict[str, Jobs]:
    return {kind: Jobs(array("d"), array("d")) for kind in KINDS}


@lru_cache(maxsize=8)
def _jobs(path: Path, stamp: int) -> dict[str, Jobs]:
    """Every job by its kind, in the file as it was at a time."""
    if path.name == NAME:
        return _lived(path)
    found = _none()
    try:
        for number, line in enumerate(inputs.lines(path, inputs.TABLE), 1):
            if line.strip():
                _add(found, line.decode(), f"{path}, line {number}")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no log of jobs: {inputs.reason(error)}.") from None
    return found


def _add(found: dict[str, Jobs], line: str, place: str) -> None:
    """Add the job of a line. Raises ConfigError where there is none."""
    try:
        job = json.loads(line)
        kind, start, end = str(job["kind"]), float(job["start"]), float(job["end"])
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        told = shown(line.rstrip("\r\n"))
        raise ConfigError(f"{place}: {told} is no job with kind, start and end.") from None
    if not (math.isfinite(start) and math.isfinite(end) and end >= start):
        raise ConfigError(f"{place}: a job ends after it starts, unlike {start:g} to {end:g}.")
    if kind in found:
        found[kind].add(start, end)


def _lived(path: Path) -> dict[str, Jobs]:
    """Jobs of a live run. A loader's seconds are all in which the driver keeps everybody waiting: from the last version
    of a round to the first actor, and from the last actor to minibatches."""
    found = _none()
    try:
        _add_rounds(found, read(path).rounds)
    except (TypeError, ValueError, AttributeError, OverflowError):
        raise ConfigError(f"{path} is no log of jobs: it holds something else than seconds.") from None
    return found


def _add_rounds(found: dict[str, Jobs], rounds: Iterable[RoundTrace]) -> None:
    before: float | None = None
    for one in rounds:
        record = one.record
        before = record.start if before is None else before
        if one.rolls:
            between = max(0.0, min(roll.start for roll in one.rolls) - before)
            found["loader"].add(max(roll.end for roll in one.rolls) - between, record.complete)
        before = max((group.published for group in record.groups), default=before)
        for gradient in (*(g for group in record.groups for g in group.gradients), *record.dropped):
            found["learner"].add(gradient.start, gradient.end)
        for roll in one.rolls:
            found["actor"].add(roll.start, roll.end)
        for group in record.groups:
            found["aggregate"].add(group.second, group.published)
