"""Log of jobs of your own trainer: wrap what actors and learners do, then `stellaris-jax choose --log jobs.jsonl`.

    log = JobLog("jobs.jsonl")
    with log.job("actor", id=rank, version_start=version):
        batch = generate(prompts)
    with log.job("learner", id=rank, version_start=version):
        loss = update(batch)

Each process may have a log of its own; `cat` joins them. If your trainer only reports seconds per step, as RLlib's
timers or verl's `timing_s/gen` and `timing_s/update_actor` do, `from_timings` makes a log of them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

KINDS = ("actor", "learner", "aggregate", "loader")


class JobLog:
    """Log that appends one line per job, in the schema of docs/jobs.md."""

    def __init__(self, path: str | Path):
        self.path = Path(path)

    def add(self, kind: str, start: float, end: float, **columns: object) -> None:
        """Append a job: its kind, start and end in seconds, and optional columns such as `id` and `version_start`."""
        if kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, not {kind}")
        line = json.dumps({"schema": 2, "kind": kind, "start": start, "end": end, **columns})
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    @contextmanager
    def job(self, kind: str, **columns: object) -> Iterator[None]:
        """Time what happens inside and append it."""
        start = time.time()
        yield
        self.add(kind, start, time.time(), **columns)


def from_timings(path: str | Path, steps: Iterable[Mapping[str, float]], keys: Mapping[str, str]) -> None:
    """Make a log of seconds per step, as if a step's jobs followed one another.

    Args:
      path: file to append to.
      steps: metrics of each step, such as `{"timing_s/gen": 31.0, "timing_s/update_actor": 12.5}`.
      keys: kind of job for each metric, such as `{"timing_s/gen": "actor", "timing_s/update_actor": "learner"}`.
    """
    log, now = JobLog(path), 0.0
    for step in steps:
        for key, kind in keys.items():
            log.add(kind, now, now + step[key], id=0)
            now += step[key]
