"""Seconds that the functions of a live run compute, beside those that they emulate or wait for the driver."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from stellaris_jax.live.pool import Call, Done, Pool
from stellaris_jax.timeline.jobs import Job


class Counting(Pool):
    """Pool that counts the seconds that the functions of another pool compute, and those that they emulate.

    Args:
      pool: pool that runs the functions.
    """

    def __init__(self, pool: Pool):
        self.pool = pool
        self.begin_anew()
        self.put, self.get = pool.put, pool.get  # type: ignore[method-assign]
        self.cool, self.close = pool.cool, pool.close  # type: ignore[method-assign]

    def begin_anew(self) -> None:
        """Forget all invocations so far."""
        self.computed = self.emulated = 0.0
        self.ended: dict[tuple[str, str], list[Done]] = {}

    def submit(self, call: Call, *arguments: Any) -> None:
        self.pool.submit(call, *arguments)

    def wait(self) -> list[Done]:
        ended = self.pool.wait()
        for done in ended:
            if done.value is not None:  # all grace is emulated, for nothing is replayed
                self.emulated += done.call.grace
                self.computed += done.seconds - done.call.grace
                worker = (done.call.kind, str(done.call.number))
                self.ended.setdefault(worker, []).append(done._replace(value=True))
        return ended


def share_of(computed: float, emulated: float) -> float:
    """Computing share of functions' seconds."""
    return computed / (computed + emulated)


PROMPT = 0.005
"""Longest time, in seconds, between two steps of a driver that is never idle."""


class Timed(NamedTuple):
    """Job of a live run.

    Attributes:
      job: the job, as the driver sees it.
      computed: seconds that its function computed; `None` of the driver's own jobs, and where it is unknown.
    """

    job: Job
    computed: float | None = None


def timed(jobs: Sequence[Job], ended: Mapping[tuple[str, str], Sequence[Done]]) -> list[Timed]:
    """Jobs of a live trace with the seconds that their functions computed.

    Args:
      jobs: the jobs.
      ended: invocations by kind and number of their worker, in their order.
    """
    following = {worker: iter(some) for worker, some in ended.items()}
    result = []
    for job in sorted(jobs, key=lambda job: job.start):
        done = next(following.get((job.kind, job.id or ""), iter(())), None)
        result.append(Timed(job, None if done is None else done.seconds))
    return result


def without_driver(jobs: Sequence[Timed]) -> list[Job]:
    """Jobs without the time in which their results waited until the driver took them.

    A result that was taken just after the driver had been busy came at some moment since then, once its function had
    computed; the middle of that time is taken. The driver prepares a batch before an aggregation that it has been
    asked for.
    """
    result, loaded = [], [job for job, _ in jobs if job.kind == "loader"]
    for job, _ in jobs:
        if job.kind == "aggregate":
            start = max((one.end for one in loaded if job.start <= one.end < job.end), default=job.start)
            job = job._replace(start=start)
        result.append(job)
    busy = _merged([(job.start, job.end) for job in result if job.kind in ("aggregate", "loader")])
    for place, (job, computed) in enumerate(jobs):
        at = bisect_right(busy, job.end, key=lambda span: span[0]) - 1
        if computed is not None and at >= 0 and job.end <= busy[at][1] + PROMPT:
            earliest = max(busy[at][0], job.start + computed)
            result[place] = job._replace(end=min(job.end, (earliest + job.end) / 2))
    return result


def _merged(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Spans of seconds, joined where not more than `PROMPT` is between them."""
    merged: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1] + PROMPT:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
