"""Log of jobs of your own trainer: wrap what actors and learners do, then `stellaris-jax choose --log jobs.jsonl`.

    log = JobLog("jobs.jsonl")
    with log.job("actor", id=rank, version_start=version):
        batch = generate(prompts)
    for minibatch in split(batch):
        with log.job("learner", id=rank, version_start=version):  # one job per gradient
            gradient = compute_gradient(minibatch)

Each process may have a log of its own; `cat` joins them. From seconds per step, `from_timings` makes a log.
"""

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
        """Append a job with its start and end in seconds, and optional columns such as `id`."""
        if kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, not {kind}")
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"schema": 2, "kind": kind, "start": start, "end": end, **columns}) + "\n")

    @contextmanager
    def job(self, kind: str, **columns: object) -> Iterator[None]:
        """Time what happens inside and append it."""
        start = time.time()
        yield
        self.add(kind, start, time.time(), **columns)


def from_timings(
    path: str | Path, steps: Iterable[Mapping[str, float]], keys: Mapping[str, str], gradients: int = 1
) -> None:
    """Append to a log the jobs of steps whose seconds are known, as if all jobs followed one another.

    Args:
      path: the log.
      steps: metrics of each step, such as `{"timing_s/gen": 31.0, "timing_s/update_actor": 12.5}`.
      keys: kind of job for each metric, such as `{"timing_s/gen": "actor", "timing_s/update_actor": "learner"}`.
      gradients: gradients per step, epochs times minibatches; a learner's seconds become as many jobs.
    """
    log, now = JobLog(path), 0.0
    for step in steps:
        for key, kind in keys.items():
            for _ in range(parts := gradients if kind == "learner" else 1):
                log.add(kind, now, now := now + step[key] / parts, id=0)
