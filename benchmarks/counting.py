"""Seconds that the functions of a live run compute, beside those that they emulate or wait for the driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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


def computing_only(jobs: Sequence[Job], ended: Mapping[tuple[str, str], Sequence[Done]]) -> list[Job]:
    """Jobs as long as their functions computed, without the time in which they waited for the driver.

    The driver prepares a batch before an aggregation that it has been asked for.

    Args:
      jobs: jobs of a live trace.
      ended: invocations by kind and number of their worker, in their order.
    """
    result = []
    loaded = [job for job in jobs if job.kind == "loader"]
    following = {worker: iter(some) for worker, some in ended.items()}
    for job in sorted(jobs, key=lambda job: job.start):
        if job.kind == "aggregate":
            start = max((one.end for one in loaded if job.start <= one.end < job.end), default=job.start)
            result.append(job._replace(start=start))
        elif done := next(following.get((job.kind, job.id or ""), iter(())), None):
            result.append(job._replace(end=job.start + done.seconds))
        else:
            result.append(job)
    return result


def passing_of(ended: Mapping[tuple[str, str], Sequence[Done]], kind: str) -> float:
    """Seconds of passing: those beside computing, where no driver was busy, so of the fastest tenth."""
    beside = sorted(one.elapsed - one.seconds for worker, some in ended.items() if worker[0] == kind for one in some)
    return max(0.0, beside[len(beside) // 10]) if beside else 0.0
