"""Simulator of independent actors on one machine: all that computes shares its cores, and emulated waits do not.

The model has no fitted number: if k functions compute on c cores, each goes at the speed c / k, at most 1.
A function is a learner, an actor, the parameter function or the data loader; each computes on one core, and passing
data is computing. The last two are the driver's, which takes no results of learners and actors meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Self

import numpy as np

from stellaris_jax.config.tree import Config
from stellaris_jax.live.emulation import Emulation
from stellaris_jax.timeline import Gradient, Round, Timeline
from stellaris_jax.timeline.events import ComputationBegun, Event, FragmentEnded, FragmentLoaded, InvocationEnded
from stellaris_jax.timeline.jobs import Job
from stellaris_jax.timeline.platform import ALONE
from stellaris_jax.timeline.sharing import PARAMETER_FUNCTION, Computation, Contention
from stellaris_jax.timeline.ticks import ticks

LOADER = -2
"""Number of the data loader among the learners; that of shard a is `LOADER - 1 - a`."""


class Cores(Contention):
    """Slowdown of functions that share cores.

    Args:
      timeline: timeline of the functions.
      cores: number of cores.
    """

    def __init__(self, timeline: Timeline, cores: int):
        super().__init__(timeline.placement, 0.0)
        self.cores = cores

    def _slowdown(self, number: int, learners: Set[int]) -> int:
        return max(ALONE, len(self.under_way) * ALONE // self.cores)


class SharedCores(Timeline):
    """Timeline of one seed whose functions compute on the same cores, and then wait for what is emulated.

    Only for whole fragments (`system.sync_steps=0`), one actor a shard, and without deaths.
    """

    @classmethod
    def on(cls, config: Config, cores: int) -> Self:
        """Timeline of a configuration.

        Args:
          config: configuration as it is executed; its delays are those of functions that compute alone.
          cores: number of cores.
        """
        timeline = cls.of(config, config.seed)
        assert isinstance(timeline, cls) and config.segments == 1, "only for whole fragments"
        timeline.cores = timeline.contention = Cores(timeline, cores)
        return timeline

    cores: Cores
    emulation: Emulation | None = None
    invoked = 0
    held: tuple[InvocationEnded | FragmentEnded, ...] = ()
    taken: tuple[InvocationEnded | FragmentEnded, ...] = ()

    def happen(self, record: Round) -> None:
        if self.held and not self._driving:
            self.taken, self.held = self.held, ()
            for event in self.taken:
                super().schedule(0, event)
        super().happen(record)

    @property
    def _driving(self) -> bool:
        """Whether the driver computes."""
        return PARAMETER_FUNCTION in self.cores.under_way or LOADER in self.cores.under_way

    def _holds(self, event: InvocationEnded | FragmentEnded) -> bool:
        """Keep a result until the driver takes it, with all others; returns whether it has to wait."""
        if any(event is one for one in self.taken):
            self.taken = tuple(one for one in self.taken if one is not event)
            return False
        if self._driving:
            self.held += (event,)
        return self._driving

    def _end(self, event: InvocationEnded, record: Round) -> None:
        if not self._holds(event):
            super()._end(event, record)

    def invoke(self, gradient: Gradient) -> None:
        wait = 0.0 if self.emulation is None else self.emulation.learner(self.invoked)
        self.invoked += 1
        gradient.start = self.now
        end = InvocationEnded(gradient, 0, self.tick, False)
        self._compute(ComputationBegun(end, ticks(wait), self.draw()))

    def schedule(self, delay: int, event: Event) -> None:
        super().schedule(delay, event)
        if isinstance(event, FragmentEnded | FragmentLoaded) and _number(event) not in self.cores.under_way:
            self.cores.under_way[_number(event)] = Computation(self.tick, delay, self._order)

    def _handle(self, event: Event, record: Round) -> None:
        if isinstance(event, FragmentEnded):
            assert self.free is not None, "actors are not independent"
            if self.cores.under_way.pop(_number(event), None) is not None:
                wait = self._wait(event.shard)
                if wait > 0:
                    super().schedule(wait, event)
                    return
            if self._holds(event):
                return
            before = self.spent.actor_busy
            super()._handle(event, record)
            self.spent.actor_busy = before + self.tick - self.free.begun[event.shard]
            return
        if isinstance(event, FragmentLoaded):
            del self.cores.under_way[LOADER]
        super()._handle(event, record)

    def _wait(self, shard: int) -> int:
        """Ticks for which a shard waits once it has computed its fragment."""
        assert self.free is not None, "actors are not independent"
        number = self.free.queue.rolling[shard].number
        wait = 0.0 if self.emulation is None else self.emulation.fragment(shard, number)
        return ticks(wait)


def _number(event: FragmentEnded | FragmentLoaded) -> int:
    return LOADER if isinstance(event, FragmentLoaded) else LOADER - 1 - event.shard


def alone(jobs: Sequence[Job], cores: int) -> list[Job]:
    """Jobs as long as they would have taken alone, by how many computed at each moment.

    Args:
      jobs: jobs of one machine, none of which waits.
      cores: number of cores.
    """
    starts, ends = np.array([job.start for job in jobs]), np.array([job.end for job in jobs])
    times = np.unique([starts, ends])
    computing = np.searchsorted(np.sort(starts), times, "right") - np.searchsorted(np.sort(ends), times, "right")
    speeds = 1.0 / np.maximum(1.0, computing[:-1] / cores)
    done = np.concatenate([[0.0], np.cumsum(speeds * np.diff(times))])
    seconds = np.interp(ends, times, done) - np.interp(starts, times, done)
    return [job._replace(end=job.start + float(took)) for job, took in zip(jobs, seconds, strict=True)]
