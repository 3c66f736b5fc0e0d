"""Logs of jobs that have run somewhere, as durations for the simulator."""

from __future__ import annotations

import json
import math
from functools import lru_cache
from pathlib import Path

from stellaris_jax.config.schema import ConfigError, shown
from stellaris_jax.timeline.trace import NAME, read

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
    return [end - start for start, end in sorted(_jobs(path, stamp)[kind]) if end > start]


@lru_cache(maxsize=8)
def _jobs(path: Path, stamp: int) -> dict[str, list[tuple[float, float]]]:
    """Start and end of every job by its kind, in the file as it was at a time."""
    if path.name == NAME:
        return _lived(path)
    found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no log of jobs: {error}.") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            job = json.loads(line)
            kind, start, end = job["kind"], float(job["start"]), float(job["end"])
        except (ValueError, TypeError, KeyError):
            raise ConfigError(f"{path}, line {number}: {shown(line)} is no job with kind, start and end.") from None
        if not (math.isfinite(start) and math.isfinite(end) and end >= start):
            raise ConfigError(f"{path}, line {number}: a job ends after it starts, unlike {start:g} to {end:g}.")
        if kind in found:
            found[kind].append((start, end))
    return found


def _lived(path: Path) -> dict[str, list[tuple[float, float]]]:
    """Jobs of a live run. A loader's seconds are all in which the driver keeps everybody waiting: from the last version
    of a round to the first actor, and from the last actor to minibatches."""
    rounds = read(path).rounds
    loader, before = [], rounds[0].record.start if rounds else 0.0
    for one in rounds:
        if one.rolls:
            between = max(0.0, min(roll.start for roll in one.rolls) - before)
            loader.append((max(roll.end for roll in one.rolls) - between, one.record.complete))
        before = max((group.published for group in one.record.groups), default=before)
    groups = [group for one in rounds for group in one.record.groups]
    gradients = [gradient for group in groups for gradient in group.gradients]
    gradients += [gradient for one in rounds for gradient in one.record.dropped]
    return {
        "learner": [(gradient.start, gradient.end) for gradient in gradients],
        "actor": [(roll.start, roll.end) for one in rounds for roll in one.rolls],
        "aggregate": [(group.second, group.published) for group in groups],
        "loader": loader,
    }
